"""accelerate's YAML → the environment variables of its ranks, by accelerate's own functions.

Private: `_validate_launch_command`, which merges the file into the arguments, and the list of fields that
`launch_command` hands to DeepSpeed. There is no public way from a file to the variables but to let
`accelerate launch` start the processes, which would start them by spawn and take seconds longer (see
benchmarks/start_up_floor.md).
"""

from __future__ import annotations

from pathlib import Path

CHECKED = {"accelerate": ">=1.15,<1.16"}


def rank_variables(config_file: Path, module: str, *arguments: str) -> dict[str, str]:
    """What `accelerate launch --config_file FILE -m MODULE ARGUMENTS` puts into the environment of its ranks.

    Raises:
        ValueError: for what accelerate refuses in the file.
    """
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    typed = launch_command_parser().parse_args(["--config_file", str(config_file), "-m", module, *arguments])
    merged, defaults, precision_in_file = _validate_launch_command(typed)
    if not merged.use_deepspeed:
        variables: dict[str, str] = prepare_multi_gpu_env(merged)
        return variables
    # The list that accelerate's launch_command makes, so that it refuses the same contradictions.
    fields = [*defaults.deepspeed_config, *(["mixed_precision"] if precision_in_file else [])]
    merged.deepspeed_fields_from_accelerate_config = ",".join(fields)
    deepspeed_variables: dict[str, str] = prepare_deepspeed_cmd_env(merged)[1]
    return deepspeed_variables
