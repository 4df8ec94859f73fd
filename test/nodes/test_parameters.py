from __future__ import annotations

import array
import re
from pathlib import Path

import pytest
import yaml

from flashrt_ros.errors import (
    ConfigError,
    ParameterRangeError,
    ParameterTypeError,
    UnknownParameterError,
)
from flashrt_ros.nodes.configuration import default_config_path, engine_name, full_namespace, load
from flashrt_ros.nodes.declarations import POLICY, SECTIONS
from flashrt_ros.nodes.names import check_namespace
from flashrt_ros.nodes.parameters import ParameterSpec, Settings, check_values, declare, read

YAML = Path(__file__).resolve().parents[2] / "config" / "flashrt.yaml"


def documented() -> dict[str, dict[str, object]]:
    # The planner engine's section is there, but commented out.
    text = re.sub(r"^# (?=/|  )", "", YAML.read_text(encoding="utf-8"), flags=re.MULTILINE)
    document = yaml.safe_load(text)
    return {key.rsplit("/", 1)[-1]: body["ros__parameters"] for key, body in document.items()}


def test_yaml_and_declarations_name_the_same_sections() -> None:
    assert documented().keys() == SECTIONS.keys()


@pytest.mark.parametrize("section", SECTIONS)
def test_yaml_and_declarations_hold_the_same_names_and_values(section: str) -> None:
    found = documented()[section]
    assert found.keys() == {spec.name for spec in SECTIONS[section]}
    for spec in SECTIONS[section]:
        assert spec.check(found[spec.name]) == spec.default, spec.name


@pytest.mark.parametrize("section", SECTIONS)
def test_yaml_and_declarations_hold_the_same_types(section: str) -> None:
    for spec in SECTIONS[section]:
        assert type(documented()[section][spec.name]) is type(spec.default), spec.name
        assert spec.check(spec.default) == spec.default


@pytest.mark.parametrize("section", ["policy_node", "planner_node", "sim"])
def test_every_parameter_says_what_it_does(section: str) -> None:
    suffixes = {"_s": "s", "_hz": "Hz"}
    for spec in SECTIONS[section]:
        assert spec.description.endswith("."), spec.name
        for suffix, unit in suffixes.items():
            if spec.name.endswith(suffix):
                assert spec.unit == unit, spec.name
        if spec.kind in ("int", "float"):
            assert spec.low is not None, spec.name
            assert spec.high is not None, spec.name


def test_unknown_parameter_names_close_matches() -> None:
    with pytest.raises(UnknownParameterError, match="rate_hz") as caught:
        check_values("policy_node", POLICY, {"rate_hy": 10.0})
    assert caught.value.code == 501


def test_unknown_parameter_without_a_close_match_names_all() -> None:
    with pytest.raises(UnknownParameterError, match="autostart"):
        check_values("policy_node", POLICY, {"zzzzzzzz": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate_hz", "ten"),
        ("rate_hz", True),
        ("rate_hz", None),
        ("env_index", 1.0),
        ("env_index", True),
        ("autostart", 1),
        ("engine", 3),
        ("cameras", "image"),
        ("cameras", [1]),
        ("cameras", {"a": 1}),
    ],
)
def test_a_mistyped_parameter_is_refused(name: str, value: object) -> None:
    with pytest.raises(ParameterTypeError, match=name) as caught:
        check_values("policy_node", POLICY, {name: value})
    assert caught.value.code == 502


def test_an_int_is_taken_where_a_float_is_meant() -> None:
    values = check_values("policy_node", POLICY, {"rate_hz": 25})
    assert values["rate_hz"] == 25.0
    assert isinstance(values["rate_hz"], float)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate_hz", 0.0),
        ("rate_hz", float("nan")),
        ("rate_hz", float("inf")),
        ("env_index", -1),
        ("safety_action", "park"),
        ("tick_source", "Timer"),
    ],
)
def test_a_parameter_out_of_range_is_refused(name: str, value: object) -> None:
    with pytest.raises(ParameterRangeError, match=name) as caught:
        check_values("policy_node", POLICY, {name: value})
    assert caught.value.code == 503


def test_a_list_without_a_value_is_empty() -> None:
    assert check_values("policy_node", POLICY, {"transforms": None})["transforms"] == []


def test_a_list_of_one_empty_string_is_the_empty_list_that_ros_can_carry() -> None:
    assert check_values("policy_node", POLICY, {"cameras": [""]})["cameras"] == []


LENGTHS = ParameterSpec("lengths", "float[]", [], "Lengths.", "m", 0.0, 2.0)


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        ([0.5, 1], [0.5, 1.0]),
        (array.array("d", [0.25]), [0.25]),
        ((2,), [2.0]),
        (["0.5", "", "1e-1"], [0.5, 0.1]),
        ([""], []),
        ([], []),
        (None, []),
    ],
)
def test_a_list_of_numbers(value: object, numbers: list[float]) -> None:
    found = LENGTHS.check(value)
    assert found == numbers
    assert isinstance(found, list)
    assert all(type(number) is float for number in found)
    assert Settings({"lengths": found}).numbers("lengths") == tuple(numbers)


@pytest.mark.parametrize("value", ["0.5", 0.5, [True], ["wide"], [[0.5]], {"a": 0.5}, [None]])
def test_what_is_no_list_of_numbers_is_refused(value: object) -> None:
    with pytest.raises(ParameterTypeError, match=r"lengths.*float\[\]"):
        LENGTHS.check(value)


@pytest.mark.parametrize("value", [[0.5, 2.5], [-0.1], ["nan"]])
def test_every_number_of_a_list_has_the_range(value: object) -> None:
    with pytest.raises(ParameterRangeError, match=r"lengths.*0 to 2 m"):
        LENGTHS.check(value)


def test_a_node_takes_a_list_of_numbers() -> None:
    rclpy = pytest.importorskip("rclpy")
    from rclpy.context import Context
    from rclpy.node import Node
    from rclpy.parameter import Parameter

    context = Context()
    rclpy.init(context=context)
    node = Node(
        "lengths",
        context=context,
        allow_undeclared_parameters=True,
        automatically_declare_parameters_from_overrides=True,
        parameter_overrides=[Parameter("lengths", value=[1, 2])],
    )
    try:
        declare(node, [LENGTHS])
        assert read(node, [LENGTHS]).numbers("lengths") == (1.0, 2.0)
        for value, kind in (([0.5], "DOUBLE_ARRAY"), ([1], "DOUBLE_ARRAY"), ([""], "STRING_ARRAY")):
            (result,) = node.set_parameters([Parameter("lengths", value=value)])
            assert result.successful, result.reason
            assert node.get_parameter("lengths").type_.name == kind
        assert read(node, [LENGTHS]).numbers("lengths") == ()
        (result,) = node.set_parameters([Parameter("lengths", value=[3.0])])
        assert not result.successful
        assert "PARAMETER_RANGE" in result.reason
    finally:
        node.destroy_node()
        context.try_shutdown()


def test_a_bound_for_each_joint_is_a_list_of_numbers_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bounds.yaml"
    for text in ("[0.05, 0.1]", '["0.05", "0.1"]'):
        file.write_text(f"/**/engine:\n  ros__parameters:\n    seam_max_step: {text}\n")
        assert load(file).engine.seam_max_step == (0.05, 0.1)
    file.write_text('/**/engine:\n  ros__parameters:\n    seam_max_step: ["wide"]\n')
    with pytest.raises(ParameterTypeError, match="seam_max_step"):
        load(file)


def test_names_of_ros_are_let_through() -> None:
    values = check_values("n", (), {"use_sim_time": True, "qos_overrides./image.depth": 3})
    assert values == {}


def test_the_packaged_file_is_found_and_loads() -> None:
    assert default_config_path().name == "flashrt.yaml"
    configuration = load()
    assert configuration.engine.name == "engine"
    assert configuration.nodes["policy_node"]["rate_hz"] == 10.0


def test_left_out_sections_and_names_take_their_defaults(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("/**/policy_node:\n  ros__parameters:\n    rate_hz: 20\n    cameras: [a, b]\n")
    configuration = load(file)
    assert configuration.nodes["policy_node"]["rate_hz"] == 20.0
    assert configuration.nodes["policy_node"]["cameras"] == ["a", "b"]
    assert configuration.nodes["sim"]["mode"] == "realtime"


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_a_device_is_named(tmp_path: Path, device: str) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(f"/**/engine:\n  ros__parameters:\n    device: {device}\n")
    assert load(file).engine.device == device


def test_use_sim_time_for_all_reaches_the_nodes_and_not_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("/**:\n  ros__parameters:\n    use_sim_time: true\n")
    configuration = load(file)
    assert configuration.nodes["planner_node"]["use_sim_time"] is True


def test_qos_overrides_reach_the_nodes(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(
        "/**/policy_node:\n  ros__parameters:\n    qos_overrides:\n"
        "      /image: {subscription: {depth: 2}}\n"
    )
    values = load(file).nodes["policy_node"]
    assert values["qos_overrides./image.subscription.depth"] == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("/**/policy_node:\n  ros__parameters:\n    rate_hy: 1\n", UnknownParameterError),
        ("/**/policy_nod:\n  ros__parameters:\n    rate_hz: 1\n", UnknownParameterError),
        ("/**/policy_node:\n  ros__parameters:\n    rate_hz: fast\n", ParameterTypeError),
        ("/**/policy_node:\n  ros__parameters:\n    rate_hz: -1\n", ParameterRangeError),
        ("/**/engine:\n  ros__parameters:\n    seeds: 1\n", UnknownParameterError),
        ("/**/engine:\n  ros__parameters:\n    seed: one\n", ParameterTypeError),
        ("/**/engine:\n  ros__parameters:\n    num_environments: 0\n", ConfigError),
        ("/**/engine:\n  ros__parameters:\n    device: tpu\n", ConfigError),
        ("/**:\n  ros__parameters:\n    use_sim_time: 1\n", ParameterTypeError),
        ("policy_node:\n  rate_hz: 1\n", ConfigError),
        ('/**/policy_node:\n  ros__parameters:\n    transforms: ["a b 1 2"]\n', ConfigError),
        ('/**/planner_node:\n  ros__parameters:\n    transforms: ["a"]\n', ConfigError),
        ("/**/policy_node:\n  ros__parameters:\n    env_index: 1\n", ConfigError),
        ('/**/policy_node:\n  ros__parameters:\n    cameras: ["a b"]\n', ConfigError),
        ("/**/policy_node:\n  ros__parameters:\n    camera_fields: [a, b]\n", ConfigError),
        ("/**/sim:\n  ros__parameters:\n    joint_names: [x]\n", ConfigError),
        ("/**/policy_node:\n  ros__parameters:\n    limit_action: safe_pose\n", ConfigError),
        ('/**/policy_node:\n  ros__parameters:\n    joint_limits: ["x speed=1"]\n', ConfigError),
        ('/**/policy_node:\n  ros__parameters:\n    joint_limits: [" "]\n', ConfigError),
        ('/**/policy_node:\n  ros__parameters:\n    safe_pose: ["x 1"]\n', ConfigError),
        ('/**/planner_node:\n  ros__parameters:\n    planners: ["a rank=1"]\n', ConfigError),
        ('/**/planner_node:\n  ros__parameters:\n    goal_schema: ["goal"]\n', ConfigError),
        ('/**/planner_node:\n  ros__parameters:\n    named_goals: ["home"]\n', ConfigError),
        ("- a\n", ConfigError),
        ("a: [\n", ConfigError),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, error: type[Exception]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(error):
        load(file)


def test_a_safe_pose_within_limits_needs_a_rate(tmp_path: Path) -> None:
    file = tmp_path / "pose.yaml"
    text = (
        "/**/policy_node:\n  ros__parameters:\n    safety_action: safe_pose\n"
        '    safe_pose: ["x position=1"]\n    safety_rate_hz: 0\n'
    )
    file.write_text(text)
    load(file)
    file.write_text(text + '    joint_limits: ["x step=0.1"]\n')
    with pytest.raises(ConfigError, match=r"policy_node: .*safety_rate_hz above 0"):
        load(file)


def test_two_values_for_one_parameter_are_refused_with_both_sections(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    text = "/robot1/policy_node:\n  ros__parameters: {rate_hz: 10.0, engine: one}\n"
    file.write_text(text + "/robot2/policy_node:\n  ros__parameters: {rate_hz: 20.0}\n")
    with pytest.raises(ConfigError, match=r"/robot1/policy_node.*/robot2/policy_node"):
        load(file)
    file.write_text(text + "/robot2/policy_node:\n  ros__parameters: {rate_hz: 10.0}\n")
    assert load(file).nodes["policy_node"]["engine"] == "one"


@pytest.mark.parametrize("namespace", ["", "/", "robot1", "/robot1", "robot1/", "/a/_b/C3", "a__b"])
def test_a_namespace_that_ros_takes(namespace: str) -> None:
    check_namespace(namespace)


@pytest.mark.parametrize(
    "namespace", ["a b", "a//b", "//a", "9bad", "a/9", "../..", "rob\u00f6t", "a\n", "~", "a" * 300]
)
def test_a_namespace_that_ros_refuses(namespace: str) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        check_namespace(namespace)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing"):
        load(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("namespace", "name", "resolved"),
    [
        ("/", "engine", "engine"),
        ("", "engine", "engine"),
        ("/robot1", "engine", "robot1/engine"),
        ("robot1/", "arm/engine", "robot1/arm/engine"),
        ("/robot1", "/engine", "engine"),
        ("//robot1", "engine", "robot1/engine"),
    ],
)
def test_engine_names_resolve_like_topics(namespace: str, name: str, resolved: str) -> None:
    assert engine_name(namespace, name) == resolved


@pytest.mark.parametrize("section", ["policy_node", "planner_node", "sim"])
def test_the_docs_list_every_parameter_as_declared(section: str) -> None:
    text = (YAML.parents[1] / "docs" / "nodes.md").read_text(encoding="utf-8")
    for spec in SECTIONS[section]:
        row = f"| {spec.unit} | {spec.range_text} | {spec.description} |"
        assert any(
            line.startswith(f"| `{spec.name}` | {spec.kind} | ") and line.endswith(row)
            for line in text.splitlines()
        ), spec.name


@pytest.mark.parametrize(
    ("pushed", "namespace", "name"),
    [
        ("", "", "engine"),
        ("", "robot1", "robot1/engine"),
        ("/fleet", "", "fleet/engine"),
        ("/fleet", "robot1", "fleet/robot1/engine"),
        ("/fleet", "/robot1", "robot1/engine"),
    ],
)
def test_an_absolute_namespace_leaves_the_pushed_one(
    pushed: str, namespace: str, name: str
) -> None:
    assert engine_name(full_namespace(pushed, namespace), "engine") == name
