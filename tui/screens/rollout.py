"""The Rollout screen: one conversation turn by turn with its verdicts, the rollouts of its group
side by side, and the differences between turns.

It opens at the latest group and stays there while the run continues: keys move to the next turn,
sibling and group, and back to the latest group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, HorizontalScroll, Vertical, VerticalScroll
from textual.widgets import DataTable, Static, TabbedContent, TabPane

from forge.store.reader import RunReader
from forge.tui.frame.asking import AskLine, PacedScreen, ask
from forge.tui.frame.watched import Watched
from forge.tui.widgets import texts
from forge.views.rollouts import (
    AnswerPart,
    Conversation,
    Sibling,
    diff_codes,
    load_conversation,
    parse_address,
    split_answer,
)
from forge.views.text import factor, number, printable

MAX_THINKING = 12
MAX_REASON = 40
"""Maximum characters of the reason in the head; the verdict pane shows all."""
STYLES = {AnswerPart.TEXT: "", AnswerPart.THINKING: "italic dim"}


def head_of(found: Conversation, turn: dict[str, Any]) -> Text:
    """Position of the turn, then its verdict and reward."""
    group = found.group
    num_siblings = max(group["num_rollouts"] or 0, len(found.siblings))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(turn["turn_id"], style="bold")
    text.append(f" · turn {turn['turn'] + 1} of {len(found.turns)}")
    text.append(f" · sibling {found.rollout + 1} of {num_siblings}")
    text.append(f" · {_when(group)}\n")
    text.append(printable(found.problem_id), style="bold")
    text.append("" if group["level"] is None else f" level {group['level']}")
    text.append("\n").append(texts.verdict_word(turn["status"]))
    text.append(f" ({printable((turn['reason'] or '–')[:MAX_REASON])})")
    if turn["speedup"] is not None:
        text.append(f" · {texts.speedup(turn)}")
    text.append(f" · reward {number(turn['reward'])} · return {number(turn['discounted_return'])}")
    text.append(f" · advantage {texts.signed(turn['advantage'])}")
    return text


def _when(group: Any) -> str:
    if group["purpose"] is None:
        return "not in a group"
    greedy = ", greedy" if group["is_greedy"] else ""
    flat = ", flat" if group["is_flat"] else ""
    stage = printable(group["stage_name"])
    return f"{group['purpose']}{greedy}{flat}, {stage} step {group['step']}"


def answer_of(found: Conversation, turn: dict[str, Any], *, is_folded: bool = False) -> Group:
    """The prompt or feedback that the model received, and its answer.

    Args:
        is_folded: only the first lines of long thinking.
    """
    before = _before(found, turn)
    parts: list[RenderableType]
    if before is not None:
        parts = [_heading("feedback"), texts.shown_text(before["feedback"] or "nothing")]
    else:
        parts = [_heading(f"the problem ({turn['num_prompt_tokens']} tokens; t shows them)")]
    parts.append(_heading("answer"))
    completion = turn["completion"] or ""
    for kind, text in split_answer(completion[: texts.MAX_SHOWN], thinking=found.thinking):
        if kind is AnswerPart.CODE:
            parts.append(texts.shown_code(text))
            continue
        lines = text.removesuffix("\n").split("\n")
        is_long = kind is AnswerPart.THINKING and is_folded and len(lines) > MAX_THINKING
        shown = "\n".join(lines[:MAX_THINKING] if is_long else lines)
        parts.append(texts.shown_text(shown, style=STYLES[kind]))
        if is_long:
            parts.append(_heading(f"{len(lines) - MAX_THINKING} more lines of thinking (z)"))
    if len(completion) > texts.MAX_SHOWN:
        parts.append(_heading(f"… {len(completion) - texts.MAX_SHOWN} more characters"))
    if turn["is_truncated"]:
        parts.append(_heading("… cut off at its length"))
    return Group(*parts)


def _before(found: Conversation, turn: dict[str, Any]) -> dict[str, Any] | None:
    return next((each for each in found.turns if each["turn"] == turn["turn"] - 1), None)


def turn_diff(found: Conversation, turn: dict[str, Any]) -> Group:
    """Differences of the code from that of the turn before."""
    before = _before(found, turn)
    if before is None:
        return Group(_heading("the first turn has none before it"))
    heading = _heading(f"from {before['turn_id']} (-) to {turn['turn_id']} (+)")
    if not before["code"] and not turn["code"]:
        return Group(heading, Text("neither has code"))
    lines = diff_codes((before["code"] or ""), (turn["code"] or ""))
    return Group(heading, texts.shown_diff(lines) if lines else Text("the same code"))


def _heading(words: str) -> Text:
    return Text(f"── {printable(words)}", style="bold cyan")


MAX_COLUMNS = 8
"""Number of codes shown at once, around the current sibling."""


def _by_turn(key: str, show: Callable[[Any], str]) -> Callable[[Sibling], str]:
    return lambda sibling: " ".join(show(turn[key]) for turn in sibling.turns)


SIBLING_COLUMNS = (
    texts.Column("rollout", "rollout", None, lambda sibling: f"r{sibling.rollout}"),
    texts.Column("return", "return", None,
                 lambda sibling: number(sibling.turns[0]["discounted_return"]), is_number=True),
    texts.Column("reward", "reward", None, _by_turn("reward", number), from_width=60),
    texts.Column("advantage", "advantage", None, _by_turn("advantage", texts.signed),
                 from_width=50),
    texts.Column("tokens", "tokens", None, _by_turn("num_completion_tokens", str), from_width=100,
                 is_number=True),
    texts.Column("turns", "turns", None, lambda sibling: texts.path_of_statuses(
        [turn["status"] or "?" for turn in sibling.turns]), takes_rest=True),
)  # fmt: skip


class SiblingsPane(Vertical):
    """Filled by `show_group`; choosing a row posts DataTable.RowSelected."""

    DEFAULT_CSS = """
    SiblingsPane RowTable { height: auto; max-height: 9; }
    SiblingsPane HorizontalScroll { height: 1fr; scrollbar-size-horizontal: 0; }
    SiblingsPane .code { width: 48; min-width: 38; height: 1fr; border-left: solid $primary; }
    SiblingsPane .-own { border-left: thick $accent; }
    """

    def compose(self) -> ComposeResult:
        yield texts.RowTable(SIBLING_COLUMNS, id="siblings-table")
        yield HorizontalScroll(id="codes", can_focus=False)

    async def show_group(self, found: Conversation, turn: int) -> None:
        """Shows the codes of `turn`, or of the last turn before it."""
        table = self.query_one(texts.RowTable)
        table.show_rows([(f"r{each.rollout}", each) for each in found.siblings])
        table.choose(f"r{found.rollout}")
        codes = self.query_one("#codes", HorizontalScroll)
        await codes.remove_children()
        shown = _around(found)
        await codes.mount_all([_code(each, turn, found.rollout) for each in shown])
        own = codes.query(".-own").first()
        self.call_after_refresh(codes.scroll_to_widget, own, animate=False)


def _around(found: Conversation) -> list[Sibling]:
    at = next(i for i, each in enumerate(found.siblings) if each.rollout == found.rollout)
    first = max(0, min(at - MAX_COLUMNS // 2, len(found.siblings) - MAX_COLUMNS))
    return list(found.siblings[first : first + MAX_COLUMNS])


def _code(sibling: Sibling, number_of: int, own: int) -> VerticalScroll:
    turn = sibling.turn(number_of)
    heading = Text(f"r{sibling.rollout}.t{turn['turn']} ", style="bold")
    heading.append(texts.verdict_word(turn["status"]))
    heading.append(f" reward {number(turn['reward'])}")
    if turn["speedup"] is not None:
        heading.append(f" {factor(turn['speedup'])}")
    classes = f"code{' -own' if sibling.rollout == own else ''}"
    code = turn["code"]
    return VerticalScroll(
        Static(heading, markup=False),
        Static(texts.shown_code(code) if code else Text("no code"), markup=False),
        classes=classes,
    )


PANES = {
    "answer": ("a", "Answer"),
    "verdict": ("v", "Verdict"),
    "siblings": ("s", "Siblings"),
    "diff": ("d", "Diff"),
    "prompt": ("t", "Prompt"),
    "reference": ("r", "Reference"),
}


def _keys_both_ways(back: str, on: str, action: str, title: str) -> list[Binding]:
    """Keys for the previous and the next one. Arrow keys have priority: they would scroll."""
    group = Binding.Group(title, compact=True)
    shown = {"left,h": "←", "right,l": "→"}
    return [
        Binding(
            keys, f"{action}({by})", f"{title} {word}", group=group, key_display=shown.get(keys),
            priority="left" in keys or "right" in keys,
        )
        for keys, by, word in ((back, -1, "before"), (on, 1, "after"))
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a query; the run may have no such rollout, or none yet."""

    conversation: Conversation | None


class Panes(TabbedContent):
    """Panes that change by key or tab only. Textual reports a focus inside a pane with a delay,
    when another pane may be active: both would activate in turn, forever."""

    def on_tab_pane_focused(self, event: TabPane.Focused) -> None:
        event.stop()
        event.prevent_default()


class RolloutScreen(PacedScreen[Found]):
    VERTICAL_BREAKPOINTS = [(0, "-low"), (32, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *_keys_both_ways("left,h", "right,l", "turn", "Turn"),
        *_keys_both_ways("k", "j", "sibling", "Sibling"),
        *_keys_both_ways("p", "n", "group", "Group"),
        Binding("G", "latest", "Latest group", show=False),
        Binding("g", "go_to", "Go to"),
        *[
            Binding(key, f"pane('{name}')", title, show=False)
            for name, (key, title) in PANES.items()
        ],
        Binding("slash", "search", "Search", key_display="/"),
        Binding("full_stop", "match", "Next match", key_display=".", show=False),
        Binding("z", "fold", "Fold thinking", show=False),
        Binding("c", "copy", "Copy code"),
        Binding("escape", "back", "Back", show=False),
    ]
    DEFAULT_CSS = """
    RolloutScreen #head { height: auto; max-height: 4; }
    RolloutScreen TabbedContent { width: 1fr; height: 1fr; }
    RolloutScreen TabPane { padding: 0; }
    RolloutScreen #side { display: none; width: 46; border-left: solid $primary; padding: 0 1; }
    RolloutScreen.-wide #side { display: block; }
    RolloutScreen Horizontal { height: 1fr; }
    RolloutScreen.-low SiblingsPane RowTable { max-height: 4; }
    RolloutScreen.-normal SiblingsPane .code { width: 39; }
    """

    def __init__(
        self,
        watched: Watched,
        *,
        group_id: int | None = None,
        rollout: int | None = None,
        turn: int = 0,
    ) -> None:
        super().__init__(watched)
        self._place = (group_id, rollout)
        """Without a group: the latest one, until one has been shown."""
        self._turn = turn
        self._words = ""
        self._match = -1
        self._is_folded = True
        self._made: RenderableType = ""

    def compose_body(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        with Horizontal():
            with Panes(initial="answer"):
                for name, (_, title) in PANES.items():
                    with TabPane(title, id=name):
                        if name == "siblings":
                            yield SiblingsPane()
                        else:
                            with VerticalScroll():
                                yield Static(id=f"{name}-text", markup=False)
            with VerticalScroll(id="side"):
                yield Static(id="side-text", markup=False)

    def question(self) -> tuple[int | None, int | None]:
        return self._place

    def answer(self, reader: RunReader, question: Any) -> Found:
        return Found(load_conversation(reader, *question))

    def show_answer(self, data: Found) -> None:
        found = data.conversation
        if found is None:
            where = "no turn was played yet" if self._place[0] is None else "no such group"
            self.query_one("#head", Static).update(where)
            return
        self._place = (found.group_id, found.rollout)
        self._show_turn(found)

    @property
    def _found(self) -> Conversation | None:
        return None if self._shown is None else self._shown.conversation

    def _current(self, found: Conversation) -> dict[str, Any]:
        return found.turns[max(0, min(self._turn, len(found.turns) - 1))]

    def _show_turn(self, found: Conversation) -> None:
        turn = self._current(found)
        self.query_one("#head", Static).update(head_of(found, turn))
        self.query_one("#side-text", Static).update(texts.verdict_panel(turn))
        self._show_pane(self.query_one(TabbedContent).active, found, turn)

    def _show_pane(self, name: str, found: Conversation, turn: dict[str, Any]) -> None:
        if name == "siblings":
            pane = self.query_one(SiblingsPane)
            self.call_next(pane.show_group, found, turn["turn"])
            return
        made = {
            "answer": lambda: answer_of(found, turn, is_folded=self._is_folded),
            "verdict": lambda: texts.verdict_panel(turn),
            "diff": lambda: turn_diff(found, turn),
            "prompt": lambda: Group(
                _heading(f"prompt: {turn['num_prompt_tokens']} tokens"),
                texts.shown_text(turn["prompt"]),
            ),
            "reference": lambda: texts.shown_code(found.source or "# not stored"),
        }[name]()
        self._made = texts.marked(made, self._words)
        self.query_one(f"#{name}-text", Static).update(self._made)

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Renders and focuses the active pane, which may differ from that of the message."""
        name = self.query_one(TabbedContent).active
        if event.pane.id != name:
            return
        if found := self._found:
            self._show_pane(name, found, self._current(found))
        focus = "#siblings-table" if name == "siblings" else f"#{name} VerticalScroll"
        self.query_one(focus).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Shows the chosen sibling."""
        event.stop()
        self._go(self._place[0], int(str(event.row_key.value)[1:]))
        self.action_pane("answer")

    def action_pane(self, name: str) -> None:
        self.query_one(TabbedContent).active = name

    def action_turn(self, by: int) -> None:
        if found := self._found:
            self._turn = max(0, min(self._turn + by, len(found.turns) - 1))
            self._show_turn(found)
            self._to_the_top()

    def action_sibling(self, by: int) -> None:
        if found := self._found:
            rollouts = [each.rollout for each in found.siblings]
            at = rollouts.index(found.rollout) + by
            if 0 <= at < len(rollouts):
                self._go(found.group_id, rollouts[at])

    def action_group(self, by: int) -> None:
        if found := self._found:
            group_id = found.before if by < 0 else found.after
            if group_id is not None:
                self._go(group_id, None)

    def action_latest(self) -> None:
        self._go(None, None)

    def action_go_to(self) -> None:
        def answered(words: str) -> None:
            if place := parse_address(words):
                self._go(place.group_id, place.rollout, turn=place.turn)
            else:
                line = f"{words}: not the name of a rollout; write g12, g12.r3 or g12.r3.t1"
                self.notify(printable(line), severity="error", markup=False)

        ask(self.app, AskLine("Go to (g12, g12.r3 or g12.r3.t1):"), answered)

    def action_copy(self) -> None:
        if found := self._found:
            turn = self._current(found)
            texts.copy_code(self.app, (turn["code"] or ""), turn["turn_id"])

    def action_fold(self) -> None:
        self._is_folded = not self._is_folded
        if found := self._found:
            self._show_turn(found)

    def action_search(self) -> None:
        def answered(words: str) -> None:
            self._search(words)
            self.action_match()

        ask(self.app, AskLine("Search in the text:", value=self._words), answered)

    def _search(self, words: str) -> None:
        self._words, self._match = words, -1
        self._is_folded = self._is_folded and not words
        if found := self._found:
            self._show_turn(found)

    def action_match(self) -> None:
        """Goes to the next match in the active pane, after the last to the first."""
        name = self.query_one(TabbedContent).active
        if not self._words or name == "siblings":
            return
        text = self.query_one(f"#{name}-text", Static)
        lines = texts.lines_with(self.app.console, self._made, self._words, width=text.size.width)
        if not lines:
            words = f"{printable(self._words)}: not in this text"
            self.notify(words, severity="warning", markup=False)
            return
        self._match = (self._match + 1) % len(lines)
        scroll = self.query_one(f"#{name} VerticalScroll", VerticalScroll)
        scroll.scroll_to(y=lines[self._match], animate=False)

    def action_back(self) -> None:
        """Ends a search; without one closes the screen if it was opened from another one."""
        if self._words:
            self._search("")
            return
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()

    def _go(self, group_id: int | None, rollout: int | None, *, turn: int | None = None) -> None:
        if group_id != self._place[0] or turn is not None:
            self._turn = turn or 0
        self._place = (group_id, rollout)
        self.ask_now()
        self._to_the_top()

    def _to_the_top(self) -> None:
        for scroll in self.query(VerticalScroll):
            scroll.scroll_home(animate=False)
