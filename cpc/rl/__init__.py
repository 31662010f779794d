"""Reinforcement learning: environments, rollouts, returns and policy losses.

Invalid arguments raise `UserError` with the name of the argument and a fix.
"""

from cpc.rl.environment import Environment as Environment
from cpc.rl.environment import Outcome as Outcome
from cpc.rl.environment import Rollout as Rollout
from cpc.rl.environment import Worlds as Worlds
from cpc.rl.environment import auto_reset as auto_reset
from cpc.rl.environment import begin as begin
from cpc.rl.environment import roll_out as roll_out
from cpc.rl.environment import side_by_side as side_by_side
from cpc.rl.hidden_ball import ball_information as ball_information
from cpc.rl.hidden_ball import make_hidden_ball as make_hidden_ball
from cpc.rl.losses import entropy as entropy
from cpc.rl.losses import gae as gae
from cpc.rl.losses import log_prob as log_prob
from cpc.rl.losses import policy_gradient_loss as policy_gradient_loss
from cpc.rl.losses import ppo_loss as ppo_loss
from cpc.rl.losses import standardize as standardize
from cpc.rl.losses import value_loss as value_loss
from cpc.rl.outside import make_environment as make_environment
from cpc.rl.t_maze import make_t_maze as make_t_maze
