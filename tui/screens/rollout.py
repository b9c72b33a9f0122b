"""The Rollout screen: one conversation turn by turn with its verdicts, its siblings, and the
differences between turns.

It opens at the latest group and stays there while the run continues: keys move to the next turn,
sibling and group, and back to the latest group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Static, TabbedContent, TabPane

from forge.tui.frame.asking import AskLine, PacedScreen
from forge.tui.widgets.conversations import SiblingsPane, answer_of, head_of, prompt_of, turn_diff
from forge.tui.widgets.texts import copy_code, lines_with, marked, shown_code, verdict_panel
from forge.views.rollouts import Conversation, load_conversation, parse_address
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from forge.store.reader import RunReader
    from forge.tui.frame.watched import Watched

PANES = {
    "answer": ("a", "Answer"),
    "verdict": ("v", "Verdict"),
    "siblings": ("s", "Siblings"),
    "diff": ("d", "Diff"),
    "prompt": ("t", "Prompt"),
    "reference": ("r", "Reference"),
}
"""Pane to its key and title."""


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
    when another pane may be active: both would activate in turn, forever.
    """

    def on_tab_pane_focused(self, event: TabPane.Focused) -> None:
        event.stop()
        event.prevent_default()


class RolloutScreen(PacedScreen[Found]):
    """The Rollout screen, key 3; also opened from Problems and Kernels."""

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
        """Searched words; empty for none."""
        self._match = -1
        self._is_folded = True
        self._made: RenderableType = ""
        """Content of the active pane."""

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
        self.query_one("#side-text", Static).update(verdict_panel(turn))
        self._show_pane(self.query_one(TabbedContent).active, found, turn)

    def _show_pane(self, name: str, found: Conversation, turn: dict[str, Any]) -> None:
        """Renders the active pane only."""
        if name == "siblings":
            pane = self.query_one(SiblingsPane)
            self.call_next(pane.show_group, found, turn["turn"])
            return
        made = {
            "answer": lambda: answer_of(found, turn, is_folded=self._is_folded),
            "verdict": lambda: verdict_panel(turn),
            "diff": lambda: turn_diff(found, turn),
            "prompt": lambda: prompt_of(turn),
            "reference": lambda: shown_code(found.source or "# not stored"),
        }[name]()
        self._made = marked(made, self._words)
        self.query_one(f"#{name}-text", Static).update(self._made)

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Renders and focuses the active pane, which may differ from that of the message."""
        name = self.query_one(TabbedContent).active
        if event.pane.id != name:
            return
        if (found := self._found) is not None:
            self._show_pane(name, found, self._current(found))
        focus = "#siblings-table" if name == "siblings" else f"#{name} VerticalScroll"
        self.query_one(focus).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Shows the chosen sibling."""
        event.stop()
        self._go(self._place[0], int(str(event.row_key.value)[1:]))
        self.action_pane("answer")

    def action_pane(self, name: str) -> None:
        """Activates a pane."""
        self.query_one(TabbedContent).active = name

    def action_turn(self, by: int) -> None:
        """Shows another turn: 1 for the next, -1 for the previous."""
        found = self._found
        if found is not None:
            self._turn = max(0, min(self._turn + by, len(found.turns) - 1))
            self._show_turn(found)
            self._to_the_top()

    def action_sibling(self, by: int) -> None:
        """Shows another rollout of the group."""
        found = self._found
        if found is None:
            return
        rollouts = [each.rollout for each in found.siblings]
        at = rollouts.index(found.rollout) + by
        if 0 <= at < len(rollouts):
            self._go(found.group_id, rollouts[at])

    def action_group(self, by: int) -> None:
        """Shows the first rollout of another group."""
        found = self._found
        group_id = None if found is None else (found.before if by < 0 else found.after)
        if group_id is not None:
            self._go(group_id, None)

    def action_latest(self) -> None:
        """Shows the latest group."""
        self._go(None, None)

    def action_go_to(self) -> None:
        """Asks for the name of a rollout and shows it."""

        def answered(words: str | None) -> None:
            place = None if words is None else parse_address(words)
            if place is not None:
                self._go(place.group_id, place.rollout, turn=place.turn)
            elif words is not None:
                line = (
                    f"{printable(words)}: not the name of a rollout; write g12, g12.r3 or g12.r3.t1"
                )
                self.notify(line, severity="error", markup=False)

        self.app.push_screen(AskLine("Go to (g12, g12.r3 or g12.r3.t1):"), answered)

    def action_copy(self) -> None:
        """Copies the turn's code to the clipboard."""
        found = self._found
        if found is not None:
            turn = self._current(found)
            copy_code(self.app, (turn["code"] or ""), turn["turn_id"])

    def action_fold(self) -> None:
        """Shows long thinking, or folds it again."""
        self._is_folded = not self._is_folded
        if (found := self._found) is not None:
            self._show_turn(found)

    def action_search(self) -> None:
        """Asks for words, marks them in every text, and goes to the first match."""

        def answered(words: str | None) -> None:
            if words is not None:
                self._search(words)
                if words:
                    self.action_match()

        self.app.push_screen(AskLine("Search in the text:", value=self._words), answered)

    def _search(self, words: str) -> None:
        self._words, self._match = words, -1
        self._is_folded = self._is_folded and not words
        if (found := self._found) is not None:
            self._show_turn(found)

    def action_match(self) -> None:
        """Goes to the next match in the active pane, after the last to the first."""
        name = self.query_one(TabbedContent).active
        if not self._words or name == "siblings":
            return
        text = self.query_one(f"#{name}-text", Static)
        lines = lines_with(self.app.console, self._made, self._words, width=text.size.width)
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
