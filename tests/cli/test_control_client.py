"""The client of control.sock against a server on a real socket."""

import errno
import socket
from pathlib import Path

import pytest

from forge.commands.status import live_line
from forge.errors import ConfigError, Stalled
from forge.process.control import ControlClient
from forge.process.sockets import open_socket_dir
from forge.views.run_state import NO_STEPS
from tests.answering import Handler
from tests.tui.supervisors import control_socket

STATUS = {
    "ok": True, "run": "x-1", "stage": "grpo-3", "done": 4, "total": 16, "unit": "steps",
    "elapsed_s": 9.0, "eta_s": 125.0, "tokens_per_s": 900.0, "judged_per_s": 3.0,
    "idle": {"trainer": 0.25}, "numbers": {"loss": 0.5}, "of a newer runner": 1,
}  # fmt: skip


class Control(Handler):
    def do_GET(self) -> None:
        self.answer(STATUS)

    def do_POST(self) -> None:
        self.read()
        match self.path:
            case "/save":
                self.answer({"message": "grpo-1: saves"})
            case "/evaluate":
                self.answer({"error": "sft-1: serves no policy"}, status=400)
            case _:
                self.answer({})


def test_a_run_of_another_user_is_named_in_one_line(monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("forge.process.ask.UnixConnection.connect", refuse)
    with pytest.raises(ConfigError, match=r"control\.sock: Permission denied: .*user"):
        ControlClient(Path("/tmp/x/control.sock")).stop()


def test_status_is_one_line_and_survives_a_newer_runner():
    with control_socket(Control) as path:
        live = ControlClient(path).status()
    assert live_line(live, NO_STEPS) == (
        "grpo-3 4/16 steps  loss 0.5  900 tok/s  3.0 judged/s  idle trainer 25%  ETA 2:05"
    )


def test_an_ended_run_and_a_silent_one_give_different_errors():
    with open_socket_dir() as folder:
        with pytest.raises(ConfigError, match="no supervisor answers there"):
            ControlClient(folder / "control.sock").status()
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(folder / "control.sock"))
            silent.listen(1)
            with pytest.raises(Stalled, match=r"was silent for 0\.1 s; asked: GET /status"):
                ControlClient(folder / "control.sock", timeout_s=0.1).status()


def test_an_accepted_request_and_a_refusal_are_one_line_each():
    with control_socket(Control) as path:
        assert ControlClient(path).save() == "grpo-1: saves"
        with pytest.raises(ConfigError, match=r"^sft-1: serves no policy$"):
            ControlClient(path).evaluate()
