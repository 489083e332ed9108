"""The speed benchmark at a tiny size, and what it makes of its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqstore_benchmarks import speed
from rmqstore_benchmarks.machine import described, replace_part, sentence, table
from rmqstore_benchmarks.measures import MEASURES, Task, anonymous_mib

PAGE = "# Page\n\n<!-- speed: begin -->\n\nold\n\n<!-- speed: end -->\n\nbehind\n"


def test_every_measure_gives_figures(tmp_path: Path) -> None:
    for what, measure in MEASURES.items():
        engine = "lmdb" if what.endswith("_raw") else "memory"
        if engine == "lmdb":
            pytest.importorskip("lmdb")
        directory = tmp_path / what
        directory.mkdir()
        figures = measure(Task(what=what, engine=engine, directory=str(directory), timers=200, batch=100, sample_every=100))
        rates = {name: figure for name, figure in figures.items() if isinstance(figure, float)}
        assert rates
        assert all(figure >= 0 for figure in rates.values())


def test_a_run_writes_json_and_replaces_its_part_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, figures = tmp_path / "page.md", tmp_path / "deep" / "figures.json"
    page.write_text(PAGE)
    monkeypatch.setattr(speed, "DISTRIBUTIONS", {"uniform": None})
    options = ["--engines", "memory", "--rounds", "2", "--timers", "1000", "--directory", str(tmp_path)]
    speed.main([*options, "--json", str(figures), "--markdown", str(page)])
    shown = capsys.readouterr().out
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("# Page\n")
    assert text.endswith("behind\n")
    assert shown.strip() in text
    assert "memory, uniform" in shown
    assert str(page) not in shown
    assert len(json.loads(figures.read_text())["results"]["batches"]["memory"]["uniform"]) == 2


def test_an_engine_that_is_not_installed_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="installed"):
        speed.main(["--engines", "no-such", "--directory", str(tmp_path)])


def test_turns_rotate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    order: list[str] = []

    def note(task: Task, directory: Path) -> dict[str, float]:
        order.append(task.what)
        return {"schedule": 1.0}

    monkeypatch.setattr(speed, "run", note)
    tasks = {what: Task(what=what, engine="memory", directory="") for what in "abc"}
    rounds = speed.in_turns(tasks, 4, tmp_path)
    assert "".join(order) == "abcbcacababc"
    assert [list(each) for each in rounds] == [["a", "b", "c"]] * 4


def test_shares_are_taken_within_a_round() -> None:
    rounds = [{"a": {"x": 6.0}, "b": {"x": 10.0}}, {"a": {"x": 1.0}, "b": {"x": 2.0}}, {"a": {"x": 8.0}, "b": {"x": 10.0}}]
    assert speed._share(rounds, "a", "b", "x") == (0.6, 0.5, 0.8)


def test_growth_of_memory_compares_the_second_fifth_with_the_last() -> None:
    flat = [(number, 50.0 + (number % 2)) for number in range(20)]
    rising = [(number, 50.0 + 10 * number) for number in range(20)]
    assert speed.memory_growth(flat) == (1.0, 51.0, 51.0)
    assert speed.memory_growth(rising)[0] >= 2
    assert anonymous_mib() > 1


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here")
    with pytest.raises(SystemExit, match="speed: begin"):
        replace_part(page, "speed", "new")
    assert page.read_text() == "nothing here"


def test_the_machine_is_described(tmp_path: Path) -> None:
    machine = described(tmp_path)
    text = sentence(json.loads(json.dumps(machine)))
    assert "pyarrow" in text
    assert f"{machine['cores']} cores" in text


def test_tables_are_aligned() -> None:
    lines = table(["", "rate"], [["lmdb", "1"], ["x", "12345"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].endswith("-: |")
