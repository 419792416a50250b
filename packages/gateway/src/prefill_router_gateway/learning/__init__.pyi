from .anchors import AnchorExpectation as AnchorExpectation
from .judging import (
    AnswerJudges as AnswerJudges,
    estimated_error as estimated_error,
    label_sources as label_sources,
)
from .labelling import (
    Labelling as Labelling,
    LabellingRound as LabellingRound,
    source_words as source_words,
)
from .learner import (
    LearnerSettings as LearnerSettings,
    LearningRound as LearningRound,
    learn as learn,
)
from .paid_questions import (
    BudgetEntry as BudgetEntry,
    BudgetLimits as BudgetLimits,
    LearningBudget as LearningBudget,
)
from .rollout import (
    CandidateStep as CandidateStep,
    CandidateTrial as CandidateTrial,
    RolloutData as RolloutData,
    RolloutDecision as RolloutDecision,
    RolloutSettings as RolloutSettings,
    advance as advance,
    decide_rollout as decide_rollout,
)
from .side_plan import (
    LabellingSettings as LabellingSettings,
    expected_gain as expected_gain,
    propensities as propensities,
)
from .target_changes import (
    ChangeSettings as ChangeSettings,
    QualityWatch as QualityWatch,
    TargetChange as TargetChange,
    change_words as change_words,
    follow_changes as follow_changes,
    mix_change as mix_change,
    price_change as price_change,
)
from .target_checks import TargetChecks as TargetChecks
from .verifiers import Verifiers as Verifiers
