"""The lab: the paper's studies, its baselines, and the harness that collects answers.

benchmarks       questions of public benchmarks and of your own files
collection       asks every target every question
predictors       the baselines that `fit` never tries
features         networks tuned on the text
depth            what encoders and their layers know
search           the search over features, predictors and calibrations
studies          seeds, ratio, shift, dimensions, layers
learning_curves  routers fitted on fewer labels
end_to_end       what routing costs and how long it takes
reproduce        the paper's tables and figures
"""
