"""Results of runs: scores and their files, a reader of run directories, and comparisons of runs.

Only this package reads run directories. `read_run` reports damaged files in `Run.problems`.
"""

from cpc.results.compare import Cell as Cell
from cpc.results.compare import Difference as Difference
from cpc.results.compare import compare as compare
from cpc.results.compare import difference as difference
from cpc.results.compare import group_by_seed as group_by_seed
from cpc.results.compare import information as information
from cpc.results.compare import is_better as is_better
from cpc.results.compare import over_seeds as over_seeds
from cpc.results.compare import paired_difference as paired_difference
from cpc.results.compare import settings as settings
from cpc.results.compare import shared_headline as shared_headline
from cpc.results.compare import stem as stem
from cpc.results.run import Run as Run
from cpc.results.run import at_end as at_end
from cpc.results.run import evaluations as evaluations
from cpc.results.run import headline_mask as headline_mask
from cpc.results.run import headline_rows as headline_rows
from cpc.results.run import last_evaluation as last_evaluation
from cpc.results.run import last_known as last_known
from cpc.results.run import last_scores as last_scores
from cpc.results.run import offset_ranges as offset_ranges
from cpc.results.run import read_run as read_run
from cpc.results.run import rule_title as rule_title
from cpc.results.run import training_rule as training_rule
from cpc.results.score import QUESTION as QUESTION
from cpc.results.score import Frame as Frame
from cpc.results.score import Outcomes as Outcomes
from cpc.results.score import Row as Row
from cpc.results.score import Score as Score
from cpc.results.score import digest as digest
from cpc.results.score import in_percent as in_percent
from cpc.results.score import name_of as name_of
from cpc.results.score import print_scores as print_scores
from cpc.results.score import read_scores as read_scores
from cpc.results.score import score_cells as score_cells
from cpc.results.score import score_frame as score_frame
from cpc.results.score import show_value as show_value
from cpc.results.score import text_table as text_table
from cpc.results.score import unit_of as unit_of
from cpc.results.score import with_unit as with_unit
from cpc.results.score import write_scores as write_scores
