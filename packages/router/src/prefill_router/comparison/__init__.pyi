from .comparison import (
    ALL as ALL,
    ComparedRouter as ComparedRouter,
    ComparisonPlan as ComparisonPlan,
    ComparisonResult as ComparisonResult,
    RecipeList as RecipeList,
    by_number as by_number,
    draw_for as draw_for,
    recipes_of as recipes_of,
    run_plan as run_plan,
)
from .duration import (
    describe_minutes as describe_minutes,
    estimate_minutes as estimate_minutes,
)
from .encoder_cost import Charge as Charge, count_tokens as count_tokens
from .recipe_fits import (
    FitJob as FitJob,
    Fitted as Fitted,
    RecipeFailure as RecipeFailure,
    RecipeFit as RecipeFit,
    digest_prices as digest_prices,
    failures as failures,
    fit_all as fit_all,
    fit_jobs as fit_jobs,
    list_left_out as list_left_out,
    warnings as warnings,
)
from .report import (
    ONE_BY_ONE as ONE_BY_ONE,
    STUDY as STUDY,
    gains_of as gains_of,
    significance_of as significance_of,
    to_dict as to_dict,
    verdict as verdict,
    write as write,
)
