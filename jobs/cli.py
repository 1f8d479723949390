"""The `dpiframe` command: subcommands are imported only when they run, so that help is instant."""

from __future__ import annotations

import importlib
import keyword
import sys

import click

# name -> one-line help, so that `dpiframe --help` imports none of them.
COMMANDS = {
    "synth": "Write Criteo- or Avazu-shaped parquet of any size.",
    "convert": "Turn downloaded Criteo TSV or Avazu CSV files into parquet shards.",
    "train": "Train a model on parquet shards and write its bundle.",
    "import": "Convert a PyTorch model to a bundle.",
    "export": "Write a bundle from a model spec and its weights.",
    "register": "Register a bundle in MLflow's model registry.",
    "score": "Score parquet shards: exactly one published score a row.",
    "backfill": "Score many dates: skips what is finished, resumes what is not.",
    "status": "Show what became of the outputs below a folder.",
    "deploy": "Print manifests: Ray Jobs, KubeRay, CronJob, Airflow, Slurm, containers.",
    "verify": "Check a finished output: every hash, every row count.",
    "track": "Send tracking records that MLflow did not get.",
    "evaluate": "Scores of an output against labels: AUC, logloss, calibration, slices, groups.",
    "calibrate": "Fit a calibration to labels and write a bundle that has it.",
    "compare": "Runs side by side, row by row; gates for a schedule.",
    "report": "Write a page about a finished output.",
    "bench": "Measure the engine against its peers.",
    "demo": "The whole path on synthetic rows: train, score, verify, track.",
    "doctor": "Print what is installed, which backends work, what to do.",
}


class LazyGroup(click.Group):
    """A group whose commands live in `jobs.<name>.command` and are imported on use. (`import` is a
    keyword: it lives in `import_`.)
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of a user's work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command, or None when there is no such name."""
        if cmd_name not in COMMANDS:
            return None
        file = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command = importlib.import_module(f"jobs.{file}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table above, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="dpiframe", prog_name="dpiframe")
def root() -> None:
    """Offline CTR scoring: parquet in, exactly one published score a row out.

    Exit codes: 0 done, 2 config, 3 contract, 4 stopped and resumable, 5 locked by another job.
    """


def main() -> None:
    """Run the command line; errors of a job become one line and their exit code."""
    from pipeline.errors import DpiframeError
    from pipeline.redaction import redact_process

    redact_process()
    sys.unraisablehook = leave_stops_unsaid
    try:
        root.main(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("error: interrupted", err=True)
        sys.exit(4)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except DpiframeError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


def leave_stops_unsaid(found: sys.UnraisableHookArgs) -> None:
    """Say nothing of a stop that was raised where nothing can be, as it is remembered and raised
    again, nor of what Ray's objects, half made when it came, raise as they go. Others are told as
    ever.
    """
    from pipeline.cluster.signals import StopRequestedError

    of_ray = str(getattr(found.object, "__module__", "")).startswith("ray.")
    if not of_ray and not issubclass(found.exc_type, StopRequestedError):
        sys.__unraisablehook__(found)


if __name__ == "__main__":
    main()
