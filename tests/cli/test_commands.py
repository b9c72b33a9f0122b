"""The command line: exit codes and messages of errors, help, and imports."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import forge
from forge import cli
from forge.cli import printing
from forge.cli.explaining import explain
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled, Stopped
from forge.exits import ending_of
from forge.store.layout import RunPaths

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "experiments" / "quickstart.toml"


def run(*argv: str, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forge", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        **kwargs,
    )


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("x.toml:1: bad"), 2, "forge: x.toml:1: bad\n"),
        (MachineError("no GPU"), 3, "forge: no GPU\n"),
        (ChildDied("judge-0 died"), 4, "forge: judge-0 died\n"),
        (Stalled("trainer was silent"), 5, "forge: trainer was silent\n"),
        (Stopped("resume with"), 130, "forge: resume with\n"),
        (ConfigError("a.toml:1: x\na.toml:2: y"), 2, "a.toml:1: x\na.toml:2: y\n"),
        (KeyboardInterrupt(), 130, "forge: stopped by Ctrl-C\n"),
        (OSError(errno.ENOSPC, "No space", "a.db"), 3, "forge: a.db: the disk is full; "),
        (OSError(errno.EMFILE, "Too many open files", "a.db"), 3, "forge: no more files can be"),
        (MemoryError(), 3, "forge: no memory is left for this process"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 3, "forge: no memory is left"),
        (RuntimeError("can't start new thread"), 3, "forge: no memory is left"),
        (RuntimeError("can't do that"), 70, ""),
        (OSError(errno.ENOSPC, "No space"), 3, "forge: stdout, or a file without a name: the d"),
        (sqlite3.OperationalError("database or disk is full"), 3, "forge: run.db: the disk is "),
        (SystemExit(7), 7, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_error_is_one_line_and_its_exit_code(error, code, line, capsys):
    assert explain(error) == code
    assert capsys.readouterr().err.startswith(line)


def test_ctrl_c_in_a_command_is_one_line(monkeypatch, capsys):
    """typer answers it with 130 and says nothing."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("forge.config.load.load_experiment", interrupted)
    assert cli.run_command(["plan", "x.toml"]) == 130
    assert capsys.readouterr().err.strip() == "forge: stopped by Ctrl-C"


INTERRUPTED_IMPORT = """
import sys
from forge.__main__ import main
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "forge.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
main()
"""


def test_ctrl_c_during_the_imports_is_one_line():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "forge: stopped by Ctrl-C\n")


def test_of_several_errors_only_the_cause_is_printed(capsys):
    inner = ExceptionGroup("", [ValueError("x"), Stalled("trainer waits")])
    group = BaseExceptionGroup("", [inner, ChildDied("serve-0 died")])
    assert explain(group) == 4
    assert capsys.readouterr().err == "forge: serve-0 died\n"
    full = ExceptionGroup("", [ChildDied("judge died"), OSError(errno.ENOSPC, "x", "run.db")])
    assert explain(full) == 3


def test_the_recorded_message_is_the_printed_one():
    nested = ExceptionGroup("", [ExceptionGroup("", [KeyError("x"), Stalled("trainer: silent")])])
    assert (ending_of(nested).code, ending_of(nested).message) == (5, "trainer: silent")
    full = ending_of(ExceptionGroup("", [OSError(errno.ENOSPC, "x", "run.db")]))
    assert (full.code, full.message.split(":")[0]) == (3, "run.db")
    assert ending_of(ExceptionGroup("", [KeyError("x")])).message == "KeyError: 'x'"
    assert ending_of(asyncio.CancelledError()).is_stop


PIPES = """
import os, sys
from forge.cli.explaining import explain
reader, writer = os.pipe()
os.dup2(writer, int(sys.argv[1]))
os.close(writer)
os.close(reader)
error = eval(sys.argv[2])
sys.exit(explain(error))
"""


@pytest.mark.parametrize(
    ("fd", "error", "code"),
    [
        (1, "BrokenPipeError()", 0),
        (1, "ExceptionGroup('', [BrokenPipeError()])", 0),
        (1, "ExceptionGroup('', [BrokenPipeError(), ValueError('x')])", 70),
        (2, "BrokenPipeError()", 70),
        (2, "__import__('forge.errors').errors.Stopped('saved')", 130),
    ],
)
def test_only_a_closed_stdout_is_not_an_error(fd, error, code):
    done = subprocess.run(
        [sys.executable, "-c", PIPES, str(fd), error],
        capture_output=True, timeout=60, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_locale_lacks_are_printed_as_question_marks(encoding, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    done = run("keys", "rollout")
    assert (done.returncode, done.stderr) == (0, "")
    assert "return_t = ?_j" in done.stdout


def test_any_other_error_is_a_bug_with_its_traceback(capsys):
    try:
        raise ExceptionGroup("", [ZeroDivisionError("1/0")])
    except ExceptionGroup as error:
        code = explain(error)
    printed = capsys.readouterr().err
    assert code == 70
    assert "ZeroDivisionError: 1/0" in printed
    assert "this is a bug in forge" in printed.splitlines()[-1]


def test_each_exit_code_belongs_to_one_error():
    codes = {kind.__name__: kind.exit_code for kind in ForgeError.__subclasses__()}
    assert sorted(codes.values()) == [2, 3, 4, 5, 130]


def test_a_wrong_command_line_exits_2_and_names_what_is_wrong():
    done = run("plan", "--nonsense", str(QUICKSTART))
    assert done.returncode == 2
    assert "--nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_arguments_the_commands_are_listed():
    done = run()
    assert "resume" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["run", "resume"])
def test_a_run_on_another_system_than_linux_is_refused_with_exit_3(command, monkeypatch, capsys):
    sysconfig.get_config_vars()  # imports a module named after the platform, once
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cli.run_command([command, "x"]) == 3
    assert "forge runs on Linux only" in capsys.readouterr().err


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m forge keys --json | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_stdout_is_reported():
    command = f"{sys.executable} -m forge keys >&-"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False, env=env
    )
    assert done.returncode == 2
    assert done.stderr == "forge: stdout is closed; >/dev/null drops the output\n"


def test_half_a_surrogate_pair_is_printed_as_a_json_escape(capsys):
    printing.print_json({"é": "\ud800"})
    out = capsys.readouterr().out
    assert out == '{"é": "\\ud800"}\n'
    assert json.loads(out) == {"é": "\ud800"}


def test_plan_prints_json_and_imports_nothing_heavy(tmp_path):
    heavy = (
        "torch", "transformers", "trl", "datasets", "triton", "numpy", "pandas", "httpx", "regex",
    )  # fmt: skip
    code = (
        "import sys; from forge.cli import run_command;"
        f"code = run_command(['plan', {str(QUICKSTART)!r}, '--json']);"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr);"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    if done.returncode == 3:
        pytest.skip(done.stderr)
    assert done.stderr == "[]\n"
    planned = json.loads(done.stdout)
    assert planned["name"] == "quickstart"
    assert planned["cpu_s"] > 0


def test_the_module_forge_is_the_command_forge():
    done = run("--help")
    assert done.stdout.startswith("Usage: forge [OPTIONS] COMMAND")
    assert run("forge.cli").stderr.startswith("Usage: forge")


def test_help_needs_neither_pydantic_nor_rich_nor_regex():
    code = (
        "import sys; from forge.cli import run_command; run_command(['--help']);"
        "heavy = 'pydantic', 'rich', 'anyio', 'sqlite3', 'regex';"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_bad_experiment_exits_2_with_every_mistake_and_makes_no_run(tmp_path):
    text = QUICKSTART.read_text().replace("[rollout]\n", "[rollout]\ngrup_size = 1\ngamma = 7\n")
    (tmp_path / "x.toml").write_text(text)
    for command in ("plan", "run"):
        done = run(command, "x.toml", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert "rollout.grup_size: unknown key; did you mean group_size?" in done.stderr
        assert "rollout.gamma: found 7; a number from 0 to 1" in done.stderr
        assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


def test_a_missing_file_and_a_missing_run_exit_2_and_list_the_existing_ones(tmp_path):
    done = run("plan", "quickstat.toml", cwd=ROOT / "experiments")
    assert (done.returncode, "there is quickstart.toml" in done.stderr) == (2, True)
    for file in ("experiments/quickstart.toml", "pyproject.toml"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    done = run("plan", "quickstart", cwd=tmp_path)
    assert done.stderr.endswith("there is experiments/quickstart.toml\n")
    assert "pyproject" not in run("plan", "nosuch.toml", cwd=tmp_path).stderr
    done = run("show", "nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "forge: nothing: no such run; runs/ holds no runs\n"


def test_stop_of_a_run_that_is_not_running_is_refused(tmp_path):
    folder = tmp_path / "runs" / "x-1"
    folder.mkdir(parents=True)
    (folder / "run.db").touch()
    done = run("stop", "x", cwd=tmp_path)
    assert (done.returncode, "x-1 is not running" in done.stderr) == (2, True)


def test_a_detached_run_that_cannot_start_has_the_same_message_and_exit_code(tmp_path):
    asked = ("--set=devices.gpus=auto", "--set=devices.train=99", "--set=store.dir=r")
    done = run("run", "-d", str(QUICKSTART), *asked, cwd=tmp_path)
    assert done.returncode == 3
    assert "needs 99 GPUs (train 99)" in done.stderr
    assert list((tmp_path / "r").iterdir()) == []


def test_a_detached_run_downloads_its_model_in_the_foreground(monkeypatch, tmp_path, capsys):
    def refuse(table, *, say):
        raise MachineError("the hub cannot be reached")

    monkeypatch.setattr("forge.runner.prepare.hub.locate_model", refuse)
    argv = ["run", "-d", str(QUICKSTART), f"--set=store.dir={tmp_path}/r"]
    assert cli.run_command(argv) == 3
    assert capsys.readouterr().err == "forge: the hub cannot be reached\n"
    assert not (tmp_path / "r").exists()


def test_a_detached_run_names_the_commands_to_look_on(monkeypatch, tmp_path, capsys):
    paths = RunPaths(tmp_path / "r" / "quickstart-1")
    monkeypatch.setattr("forge.commands.detach.run_detached", lambda *args, **more: paths)
    argv = ["run", "-d", str(QUICKSTART), f"--set=store.dir={tmp_path}/r"]
    assert cli.run_command(argv) == 0
    said = capsys.readouterr()
    assert said.out == f"{paths.root}\n"
    for command in ("tui", "logs", "stop"):
        assert f'"forge {command} quickstart-1' in said.err
    assert cli.run_command([*argv, "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_judging_a_file_that_is_not_a_problem_exits_2(tmp_path):
    (tmp_path / "p.py").write_text("class Model: pass\n")
    (tmp_path / "c.py").write_text("x = 1\n")
    done = run("judge", "p.py", "c.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "p.py" in done.stderr
    assert "get_inputs" in done.stderr
    done = run("judge", "p.py", "c.py", "--isolation", "weak", cwd=tmp_path)
    assert (done.returncode, "one of auto" in done.stderr) == (2, True)


def test_a_spinner_is_shown_while_a_judge_starts(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    with printing.waiting("judging", is_shown=True) as end_waiting:
        end_waiting()
        printing.print_text("the verdict")
    shown = capsys.readouterr()
    assert "judging" in shown.err
    assert shown.out == "the verdict\n"
    with printing.waiting("judging", is_shown=False):
        pass
    assert capsys.readouterr().err == ""


def test_keys_prints_a_table_or_lists_the_known_ones():
    done = run("keys", "rollout")
    assert done.returncode == 0
    assert "group_size" in done.stdout
    done = run("keys", "rolout")
    assert (done.returncode, "did you mean rollout?" in done.stderr) == (2, True)


def test_the_entry_point_is_the_one_in_pyproject():
    text = (ROOT / "pyproject.toml").read_text()
    assert 'forge = "forge.__main__:main"' in text
    assert forge.__version__
