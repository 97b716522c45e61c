"""A user's own DeepSpeed JSON: read, checked against the run, what it leaves open filled.

What the file states wins over the runner's defaults, and contradicts what was typed on the command line:
then both values are named. Whether it has an `optimizer` and a `scheduler` block decides who owns them.
"""

from runner.engines.deepspeed.user_json.adoption import adopt, fixed_batch
from runner.engines.deepspeed.user_json.blocks import adam_class, other_length, schedule_words
from runner.engines.deepspeed.user_json.filling import fill

__all__ = ["adam_class", "adopt", "fill", "fixed_batch", "other_length", "schedule_words"]
