"""The command line: picks the verb, prints what is wrong with a request, sets the exit status.

python -m runner [overrides]            run (the embedded default without overrides)
python -m runner -m [overrides]         one run for each combination of values
python -m runner VERB [...]             see --help, and VERB --help
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Callable

from runner.plain_text import escaped
from runner.safe_stdout import give_up_output, hand_on, open_streams

# A file or folder of the user's that cannot be used as it is, wherever it was asked for.
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENOTDIR)
HELP_FLAGS = ("-h", "--help")
STARTS_RANKS = ("run", "resume")

VERBS = {
    "run": "run the composed experiment (the default verb); with -m a sweep",
    "render": "write and print accelerate.yaml, ds_config.json and the by-hand command; start nothing",
    "keys": "list every configuration key with default, unit, range and meaning",
    "estimate": "bytes per rank and per host for this configuration and its alternatives",
    "fit": "find the largest micro batch, or the fastest configuration, that really fits",
    "report": "compare runs: table, markdown, csv, json or an HTML page",
    "resume": "resume an interrupted run from its last checkpoint",
    "status": "where runs stand: queued, running, how they ended",
    "stop": "ask a run to checkpoint and end, or end it at once",
    "export": "write a from_pretrained folder from a run or one of its checkpoints",
    "merge": "write the whole model of a run with an adapter",
    "predict": "predict the rows of a file with a run's model; no labels needed",
    "eject": "write a standalone folder: one training script and its files, no runner",
    "new": "start your own recipe as a copy of one of ours",
    "doctor": "what this machine can do, problems first",
    "track": "send run folders to TensorBoard, MLflow, wandb or trackio, also later",
    "watch": "a live view of running runs and sweeps; reads files only",
    "push": "upload a run's model to the Hugging Face hub",
    "completion": "print a script that completes verbs, groups, options and keys in bash, zsh or fish",
    "cache": "what lies in the caches, and how large it is; `cache clean` removes what the runner made",
}
HELP = f"""usage: python -m runner [VERB] [KEY=VALUE | GROUP=OPTION ...]

Fine-tuning experiments composed from small YAML files, checked, launched on real ranks, timed and recorded.

verbs:
{chr(10).join(f"  {name:<10} {text}" for name, text in VERBS.items())}

examples:
  python -m runner                                        a tiny DeBERTa on a generated sample, two CPU ranks, ZeRO-2
  python -m runner model=deberta_xl zero_stage=2          the classic experiment
  python -m runner -m train.micro_batch_size=8,16,40      one run for each batch size
  python -m runner render model=deberta_xl zero_stage=2   only the files

python -m runner VERB --help tells of a verb.

groups (python -m runner keys lists the keys):
"""


def main() -> int:
    """Run the verb that was typed; returns the exit status."""
    open_streams()
    arguments = sys.argv[1:]
    if arguments and arguments[0] in HELP_FLAGS:
        return delivered(lambda: print(HELP + _groups()))
    if arguments and arguments[0] == "--version":
        from runner import __version__

        return delivered(lambda: print(__version__))
    verb = arguments.pop(0) if arguments and arguments[0] in VERBS else "run"
    flags = [
        argument
        for argument in arguments
        if verb == "run" and argument.startswith("-") and argument not in ("-m", "--multirun", *HELP_FLAGS)
    ]
    if flags:
        return _unknown_flag(flags[0])
    unknown = [argument for argument in arguments[:1] if verb == "run" and argument.isidentifier()]
    if unknown:
        return _unknown_verb(unknown[0])
    return answer(verb, arguments)


def answer(verb: str, arguments: list[str]) -> int:
    """No traceback reaches a user for a mistake of theirs."""
    if verb in STARTS_RANKS:
        from runner.launch.process_signals import listen_early

        listen_early()
    return delivered(lambda: _answer(verb, arguments), resumable=verb in STARTS_RANKS)


def _answer(verb: str, arguments: list[str]) -> int | None:
    module = importlib.import_module(f"runner.cli.{verb}")
    usage = getattr(module, "USAGE", None)  # the other verbs parse flags, and tell of them themselves
    if usage and any(argument in HELP_FLAGS for argument in arguments):
        print(usage)
        return None
    return int(module.main(arguments))


def delivered(answer: Callable[[], int | None], resumable: bool = False) -> int:  # noqa: C901
    """The answer's exit status (None: 0), with its output handed on as far as anyone reads it.

    Args:
        resumable: whether a run that ends because the disk is full can be resumed.
    """
    from runner.errors import EXIT_BAD_REQUEST, EXIT_FAILED, EXIT_INTERRUPTED, RequestError

    try:
        status = answer() or 0
        sys.stdout.flush()
        return status
    except RequestError as error:
        return _print_error(str(error), EXIT_BAD_REQUEST)
    except SystemExit as stop:  # argparse, and rich where the reader went away
        hand_on()
        if isinstance(stop.__context__, BrokenPipeError):
            return 0
        return stop.code if isinstance(stop.code, int) else EXIT_BAD_REQUEST
    except BrokenPipeError:
        give_up_output()
        return 0  # the reader of our output went away (`| head`)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # wherever a path was asked for
            return _print_error(
                f"error: {error.filename}: this name is too long for a file; choose a shorter one", EXIT_BAD_REQUEST
            )
        if error.errno in NOT_ALLOWED and error.filename is not None:
            why = f"{os.strerror(error.errno)}; give this user access to it, or name another place"
            return _print_error(f"error: {escaped(os.fsdecode(error.filename))}: {why}", EXIT_BAD_REQUEST)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        if error.filename is None:
            hand_on()
        way = (
            "free some space, then resume with python -m runner resume RUN_DIR"
            if resumable
            else "free some space, then type the command again"
        )
        return _print_error(f"error: {error.filename or 'a file or standard output'}: disk full; {way}", EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _print_error(line: str, status: int) -> int:
    with contextlib.suppress(BrokenPipeError):
        print(line, file=sys.stderr)
    return status


def _unknown_flag(flag: str) -> int:
    """Hydra's own flags have verbs here."""
    hints = {"--cfg": "render", "-c": "render", "--resolve": "render", "--info": "doctor", "-i": "doctor"}
    verb = hints.get(flag.partition("=")[0])
    hint = (
        f"`python -m runner {verb}` shows that"
        if verb
        else "flags are -m, --help and --version; see `python -m runner --help`"
    )
    print(f"error: {flag}: there is no such flag; {hint}", file=sys.stderr)
    return 2


def _unknown_verb(word: str) -> int:
    from runner.errors import nearest

    near = nearest(word, VERBS)
    hint = f"did you mean {near}?" if near else f"verbs are {', '.join(VERBS)}"
    print(f"error: {word}: this is neither a verb nor key=value; {hint}", file=sys.stderr)
    return 2


def _groups() -> str:
    """Options by group, without importing Hydra."""
    from runner.config.catalogue import option_files
    from runner.paths import conf_dir

    names = sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
    return "\n".join(f"  {name:<11} {', '.join(sorted(option_files(name)))}" for name in names if option_files(name))


if __name__ == "__main__":
    sys.exit(main())
