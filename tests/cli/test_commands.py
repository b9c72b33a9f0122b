"""The command line: exit codes, error messages, help, imports, completion, `plan --assume`."""

import errno
import json
import os
import sqlite3
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from forge import cli
from forge.cli import printing
from forge.cli.explaining import explain
from forge.errors import ChildDied, ConfigError, MachineError, Stalled, Stopped
from forge.process.devices import GpuUser, Occupancy
from forge.process.gpu_locks import claim
from forge.runner.plan import machine as claiming
from forge.runner.plan import machine as machine_module
from tests.gpus import make_gpu
from tests.views.terminals import told

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "experiments" / "quickstart.toml"


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """A process with this checkout's forge."""
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.fixture
def forge(capsys):
    """Runs a command here: exit code, stdout and stderr."""

    def run_here(*argv: str) -> tuple[int, str, str]:
        code = cli.run_command(list(argv))
        return code, *capsys.readouterr()

    return run_here


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
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 999), 2, f"forge: {'x' * 60}…"),
        (RuntimeError("Could not determine home directory."), 3, "forge: no home directory"),
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
    assert told(capsys, "plan", "x.toml", code=130).strip() == "forge: stopped by Ctrl-C"


def test_of_several_errors_only_the_cause_is_printed(capsys):
    inner = ExceptionGroup("", [ValueError("x"), Stalled("trainer waits")])
    group = BaseExceptionGroup("", [inner, ChildDied("serve-0 died")])
    assert explain(group) == 4
    assert capsys.readouterr().err == "forge: serve-0 died\n"
    full = ExceptionGroup("", [ChildDied("judge died"), OSError(errno.ENOSPC, "x", "run.db")])
    assert explain(full) == 3


def test_a_closed_pipe_is_no_error_and_a_closed_stdout_is_one():
    command = f"{sys.executable} -m forge keys --json"
    done = run("bash", "-c", f"{command} | head -c 10; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")
    done = run("bash", "-c", f"{command} >&-")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "stdout is closed" in done.stderr


def test_characters_that_the_locale_lacks_are_printed_as_question_marks(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    done = run(sys.executable, "-m", "forge", "keys", "rollout")
    assert (done.returncode, done.stderr) == (0, "")
    assert "return_t = ?_j" in done.stdout


def test_any_other_error_is_a_bug_with_its_traceback(capsys):
    assert explain(ExceptionGroup("", [ZeroDivisionError("1/0")])) == 70
    printed = capsys.readouterr().err
    assert "ZeroDivisionError: 1/0" in printed
    assert "this is a bug in forge" in printed.splitlines()[-1]


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["plan", "--nonsense", "x.toml"], 2, "--nonsense"),
        (["plan", "quickstart"], 2, "there is experiments/quickstart.toml\n"),
        (["show", "nothing"], 2, "forge: nothing: no such run; runs/ holds x-1\n"),
        (["stop", "x"], 2, "x-1 is not running"),
        (["serve", "x-1@3", "--socket", "s"], 2, "x-1:3"),
        (["keys", "rolout"], 2, "did you mean rollout?"),
        (["keys", "rollout"], 0, "group_size"),
        (["--help"], 0, "Usage: forge [OPTIONS] COMMAND"),
        ([], 2, "resume"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_on_a_command_line_is_named(argv, code, words, forge, tmp_path, monkeypatch):
    for file in ("experiments/quickstart.toml", "pyproject.toml", "runs/x-1/run.db"):
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    found = forge(*argv)
    assert found[0] == code
    assert words in found[1] + found[2]
    assert "Traceback" not in found[2]
    assert "pyproject" not in found[2]


def test_a_bad_experiment_exits_2_with_every_mistake_and_makes_no_run(forge, tmp_path, monkeypatch):
    text = QUICKSTART.read_text().replace("[rollout]\n", "[rollout]\ngrup_size = 1\ngamma = 7\n")
    (tmp_path / "x.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    for command in ("plan", "run"):
        code, _, said = forge(command, "x.toml")
        assert (code, "did you mean group_size?" in said, "rollout.gamma: found 7" in said) == (
            2, True, True,
        )  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


IMPORTED = """
import sys
from forge.cli import run_command
code = run_command(sys.argv[2:])
print([name for name in sys.argv[1].split() if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("argv", "heavy"),
    [
        (["--help"], "pydantic rich anyio sqlite3 regex"),
        (
            ["plan", str(QUICKSTART), "--json"],
            "torch transformers trl datasets triton numpy pandas httpx regex",
        ),
    ],
    ids=["help", "plan"],
)
def test_a_command_imports_nothing_that_it_does_not_need(argv, heavy):
    done = run(sys.executable, "-c", IMPORTED, heavy, *argv)
    if done.returncode == 3:
        pytest.skip(done.stderr)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    if "plan" in argv:
        assert json.loads(done.stdout)["name"] == "quickstart"


@pytest.mark.parametrize("command", ["run", "resume"])
def test_a_run_on_another_system_than_linux_is_refused_with_exit_3(command, monkeypatch, capsys):
    sysconfig.get_config_vars()  # imports a module named after the platform, once
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "forge runs on Linux only" in told(capsys, command, "x", code=3)


def test_half_a_surrogate_pair_is_printed_as_a_json_escape(capsys):
    printing.print_json({"é": "\ud800"})
    out = capsys.readouterr().out
    assert out == '{"é": "\\ud800"}\n'
    assert json.loads(out) == {"é": "\ud800"}


def test_a_detached_run_that_cannot_start_has_the_same_message_and_exit_code(forge, tmp_path):
    store = tmp_path / "r"
    asked = ("devices.gpus=auto", "devices.train=99", f"store.dir={store}")
    code, _, said = forge("run", "-d", str(QUICKSTART), *(f"--set={each}" for each in asked))
    assert (code, "needs 99 GPUs (train 99" in said) == (3, True)
    assert list(store.iterdir()) == []


def test_a_detached_run_downloads_its_model_in_the_foreground(monkeypatch, tmp_path, capsys):
    def refuse(table, *, say):
        raise MachineError("the hub cannot be reached")

    monkeypatch.setattr("forge.runner.prepare.hub.locate_model", refuse)
    argv = ["run", "-d", str(QUICKSTART), f"--set=store.dir={tmp_path}/r"]
    assert told(capsys, *argv, code=3) == "forge: the hub cannot be reached\n"
    assert not (tmp_path / "r").exists()


def complete(words: str, folder: Path) -> list[str]:
    """Words that bash offers for the last one of a command line."""
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "_FORGE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    ran = subprocess.run(
        [sys.executable, "-m", "forge"], cwd=folder, env=env, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("forge ru", ["run", "runs"]),
        ("forge init qui", ["quickstart"]),
        ("forge show ", ["quick-2", "quick-1", "last"]),
        ("forge run ", []),
    ],
)
def test_commands_recipes_and_runs_are_offered(words, offered, tmp_path):
    for number in (1, 2):
        run = tmp_path / "runs" / f"quick-{number}"
        run.mkdir(parents=True)
        (run / "run.db").touch()
        os.utime(run / "run.db", (number, number))
    assert complete(words, tmp_path) == offered, "an empty answer leaves files to the shell"


ON_GPUS = ("--set=devices.gpus=auto", "--set=devices.train=auto", "--set=devices.judge=1")
CARD = make_gpu()


def test_a_plan_for_an_assumed_machine_shows_its_gpus_and_reasons(capsys):
    shown = told(capsys, "plan", QUICKSTART, "--assume", "3xH100-80GB", *ON_GPUS)
    assert "assumed: 3xH100-80GB" in shown
    assert "· devices.train = auto: 2 of 3" in shown
    (trainer,) = [line for line in shown.splitlines() if line.startswith("trainer ")]
    assert "GPU 1-2" in trainer
    argv = ["plan", str(QUICKSTART), "--assume", "3xH100-80GB", *ON_GPUS, "--json"]
    plan = json.loads(told(capsys, *argv))
    devices = {each["name"]: each["device"] for each in plan["processes"]}
    assert (devices["judge-0"], devices["trainer"]) == ("GPU 0", "GPU 1-2")
    assert plan["processes"][-1]["gpu_bytes"] > 0
    assert plan["engine"] == "llama"


def test_files_of_another_machine_need_not_be_on_this_one(tmp_path, capsys):
    (tmp_path / "x.toml").write_text(
        'name = "x"\nmodel.path = "Qwen/Qwen3-8B"\nproblems.source = "dir"\n'
        f'problems.path = "{tmp_path}/nowhere"\nserve.python = "{tmp_path}/python"\n'
        '[devices]\ngpus = "auto"\nserve = "auto"\n[[stage]]\nkind = "eval"\n'
    )
    assert "vllm" in told(capsys, "plan", tmp_path / "x.toml", "--assume", "1xH100-80GB")
    assert "nowhere" in told(capsys, "plan", tmp_path / "x.toml", code=2)


def test_an_invalid_assumed_machine_is_refused(capsys):
    assert cli.run_command(["plan", str(QUICKSTART), "--assume", "many"]) == 2
    assert capsys.readouterr().err.startswith('forge: --assume: found "many"; ')


@pytest.fixture
def one_card(monkeypatch, tmp_path):
    """Makes commands see a machine with one GPU whose memory another process fills."""
    monkeypatch.setattr(machine_module, "inventory", lambda: (CARD,))
    full = Occupancy(free_bytes=0, users=(GpuUser(pid=77, name="python", memory_bytes=1 << 37),))
    monkeypatch.setattr(machine_module, "occupancies", lambda gpus: {CARD.uuid: full})

    def claim_here(gpus, **keys):
        return claim(gpus, **{**keys, "folder": tmp_path})

    monkeypatch.setattr(claiming, "claim", claim_here)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_on_a_gpu_in_use_is_refused_before_it_has_a_directory(one_card, capsys):
    asked = ["--set=devices.gpus=auto", "--set=devices.judge=1"]
    with claim([CARD], run="first-3", folder=one_card):
        assert "is used by run first-3, pid " in told(capsys, "run", QUICKSTART, *asked, code=3)
        assert cli.run_command(["run", str(QUICKSTART), *asked, "--wait", "0.01"]) == 3
        assert capsys.readouterr().err.endswith(" after 0 s\n")
    assert not (one_card / "runs").exists()
