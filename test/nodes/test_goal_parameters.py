from __future__ import annotations

import pytest

from flashrt_ros.engine.protocol import ChannelInfo, FieldInfo, ModelInfo
from flashrt_ros.errors import ConfigError, PayloadShapeError, UnsupportedError
from flashrt_ros.nodes.schema import apply_schema, parse_schema
from flashrt_ros.nodes.words import parse_named_goals, word_values

POINT = FieldInfo("values", (2,), "float32", 0, -1.0, None, "m")
TEXT = FieldInfo("text", (8,), "uint8", 0, None, None, "")


def model(*fields: FieldInfo) -> ModelInfo:
    goal = ChannelInfo("goal", "goal", "table", 256, 4, 4096, fields or (POINT,))
    other = ChannelInfo("observation", "observation", "", 256, 4, 4096, (POINT,))
    return ModelInfo("m", 4, 2, 2, ("x", "y"), 1, (goal, other), "f", 1, 0, 1024)


def applied(text: str) -> FieldInfo:
    return apply_schema(model(), parse_schema([text])).channels[0].fields[0]


class TestSchema:
    def test_what_agrees_changes_nothing(self) -> None:
        text = "goal.values shape=2 dtype=float32 low=-1 frame=table units=m"
        assert apply_schema(model(), parse_schema([text])) == model()
        assert apply_schema(model(), ()) == model()

    def test_a_narrower_range_counts(self) -> None:
        field = applied("goal.values low=-0.5 high=0.25")
        assert (field.low, field.high) == (-0.5, 0.25)

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("goal.values shape=3", "shape"),
            ("goal.values shape=2x1", "shape"),
            ("goal.values dtype=float64", "dtype"),
            ("goal.values frame=base", "frame"),
            ("goal.values units=mm", "units"),
            ("goal.values low=-2", "low"),
            ("goal.pose shape=2", "lacks"),
            ("gaol.values shape=2", "lacks"),
            ("observation.values shape=2", "lacks"),
        ],
    )
    def test_what_differs_is_refused_by_name(self, text: str, what: str) -> None:
        with pytest.raises(ConfigError, match=what):
            applied(text)

    @pytest.mark.parametrize(
        "text",
        ["goal", "goal.", "goal.values shape=0", "goal.values shape=2,2", "goal.values low=a"],
    )
    def test_an_entry_that_can_not_be_read_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="goal_schema"):
            parse_schema([text])

    def test_a_field_said_twice_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="two entries"):
            parse_schema(["goal.values shape=2", "goal.values low=0"])


class TestWords:
    def test_named_goals_whatever_case_and_spaces(self) -> None:
        named = parse_named_goals(["Go  left = -0.5 0", "a=b = 1 2"])
        assert word_values("go LEFT ", POINT, named).tolist() == [-0.5, 0.0]
        assert word_values("a=b", POINT, named).tolist() == [1.0, 2.0]

    def test_a_model_that_reads_words_gets_them_as_bytes(self) -> None:
        assert word_values("\u00fcber", TEXT, {}).tolist() == [*"\u00fcber".encode(), 0, 0, 0]
        with pytest.raises(PayloadShapeError, match="8 bytes"):
            word_values("much too long", TEXT, {})

    def test_words_without_a_meaning_are_refused(self) -> None:
        with pytest.raises(UnsupportedError, match="model that reads words"):
            word_values("go left", POINT, {})

    def test_a_named_goal_of_another_size_is_refused(self) -> None:
        with pytest.raises(PayloadShapeError, match="'home'"):
            word_values("home", POINT, parse_named_goals(["home = 1 2 3"]))

    @pytest.mark.parametrize("text", ["home", "= 1 2", "home =", "home = a", "home = inf"])
    def test_an_entry_that_can_not_be_read_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="named_goals"):
            parse_named_goals([text])

    def test_a_name_given_twice_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="twice"):
            parse_named_goals(["home = 1 2", "Home = 3 4"])
