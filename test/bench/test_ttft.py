"""The bench of first tokens: what it refuses to time, whom it samples how often, its peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.bench import ttft, ttft_decode, ttft_peers, ttft_set, ttft_transformers
from flashrt_ros.bench.context import Context
from flashrt_ros.bench.devices import GpuDevice, HostDevice
from flashrt_ros.bench.failures import WrongResultError
from flashrt_ros.bench.sampling import NO_SAMPLE, Case, Sample
from flashrt_ros.bench.ttft_models import (
    BIG,
    SMALL,
    TINY,
    TextScale,
    build,
    random_tokens,
    scale_for,
)
from flashrt_ros.bench.ttft_rounds import FEW, MOST, Sparse, share_out, spread
from flashrt_ros.bench.ttft_stand import TextStand
from flashrt_ros.bench.ttft_transformers import TransformersPeer
from flashrt_ros.errors import SpecError
from flashrt_ros.models.hybrid_lm import CONVOLUTION, RECURRENT
from flashrt_ros.models.hybrid_session import HybridSession

PREFIX, SUFFIX = random_tokens(128, TINY, 3), random_tokens(64, TINY, 4)

needs_transformers = pytest.mark.skipif(
    bool(ttft_transformers.why_absent()), reason="no transformers to compare with"
)


@pytest.fixture(scope="module")
def stand() -> Iterator[TextStand]:
    with TextStand(HostDevice(), TINY) as made:
        yield made


# sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [BIG, SMALL, TINY])
def test_every_length_is_a_border_and_a_prefix(scale: TextScale) -> None:
    assert all(not length % 64 for length in (*scale.prefixes, scale.set_prefix))
    assert scale.decode_at in scale.prefixes
    assert list(scale.prefixes) == sorted(scale.prefixes)
    assert not scale.chunk_length % 64
    assert 0 < scale.set_pinned < scale.set_quota < scale.set_size


def test_a_gpu_gets_a_billion_parameters() -> None:
    assert scale_for("cuda", is_tiny=False) is BIG
    assert BIG.title == "1.2 B parameters, bfloat16"
    assert scale_for("cuda", is_tiny=True) is scale_for("cpu", is_tiny=True) is TINY


def test_tokens_are_decoded_after_one_of_the_prefixes() -> None:
    with pytest.raises(SpecError, match=r"decode after.*expected \(128, 256\), found 192"):
        dataclasses.replace(TINY, decode_at=192)


def test_a_model_has_the_room_that_is_asked_for() -> None:
    model, _ = build(TINY, torch.device("cpu"), max_positions=256, chunk_length=64)
    assert (model.max_positions, model.chunk_length) == (256, 64)
    own, _ = build(TINY, torch.device("cpu"))
    assert (own.max_positions, own.chunk_length) == (512, TINY.chunk_length)


# samples --------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.text(min_size=1), st.floats(1e-4, 100.0), min_size=1, max_size=6),
    st.floats(0.0, 1000.0),
)
def test_samples_fit_the_time_or_are_the_fewest(
    estimates_s: dict[str, float], seconds: float
) -> None:
    counts = share_out(estimates_s, seconds)
    total_s = sum(counts[name] * estimates_s[name] for name in counts)
    assert set(counts) == set(estimates_s)
    assert all(1 <= count <= MOST for count in counts.values())
    assert total_s <= seconds or set(counts.values()) == {1}


def test_the_dearest_gives_way_first() -> None:
    counts = share_out({"dear": 1.0, "cheap": 0.01}, 5.0)
    assert counts["cheap"] == MOST
    assert FEW <= counts["dear"] < MOST


@given(st.integers(1, MOST), st.integers(1, MOST))
def test_a_sparse_call_is_made_so_often(rounds: int, count: int) -> None:
    count = min(count, rounds)
    done: list[int] = []
    sparse = Sparse(lambda: done.append(1), count, rounds)
    answers = [sparse() for _ in range(rounds)]
    assert len(done) == count
    assert answers.count(NO_SAMPLE) == rounds - count


def test_rounds_are_those_of_the_most_frequent() -> None:
    def timer(run: Callable[[], object]) -> tuple[Sample, object]:
        return Sample(0.0, 0.0), run()

    made = spread({name: Case(list, timer) for name in "ab"}, {"a": 2, "b": 6})
    runs = {name: case.run for name, case in made.items()}
    assert isinstance(runs["a"], Sparse)
    assert (runs["a"].count, runs["a"].rounds) == (2, 6)


# what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [RECURRENT, CONVOLUTION])
def test_a_restore_that_leaves_a_part_out_is_noticed(
    stand: TextStand, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    whole = HybridSession.restore

    def restore(self: HybridSession, capsule: object) -> None:
        whole(self, capsule)  # type: ignore[arg-type]
        self.write(part, bytes(self.layout.by_name[part].spec.num_bytes))

    with closing(stand.capsule_of(PREFIX)) as capsule:
        stand.check(PREFIX, SUFFIX, capsule)
        monkeypatch.setattr(HybridSession, "restore", restore)
        with pytest.raises(WrongResultError, match="a restore"):
            stand.check(PREFIX, SUFFIX, capsule)


def test_a_prefix_that_was_mixed_up_is_noticed(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ttft_set.PrefixSet.first_token
    monkeypatch.setattr(
        ttft_set.PrefixSet, "first_token", lambda self, key: whole(self, max(0, key - 1))
    )
    with TextStand(HostDevice(), TINY) as stand, pytest.raises(WrongResultError, match="other"):
        ttft_set.run(make_context(), stand, 0.0)


def test_decoding_other_tokens_is_noticed(
    make_context: Callable[..., Context], stand: TextStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashrt_ros.bench.ttft_decode._one_by_one", lambda session: [0] * 64)
    with closing(stand.capsule_of(PREFIX)) as capsule, pytest.raises(WrongResultError):
        ttft_decode.run(make_context(), stand, capsule, 0.0)


def test_a_grain_that_is_too_coarse_is_counted(
    stand: TextStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(stand.capsule_of(PREFIX)) as capsule:
        assert stand.num_differing(PREFIX, SUFFIX, capsule) == 0
        whole = HybridSession.append

        def append(self: HybridSession, tokens: list[int]) -> None:
            whole(self, tokens)
            if self.position == 128:  # as if short chunks added up in another order
                damaged = bytearray(self.read(RECURRENT))
                damaged[2] ^= 1
                self.write(RECURRENT, bytes(damaged))

        monkeypatch.setattr(HybridSession, "append", append)
        assert stand.num_differing(PREFIX, SUFFIX, capsule) > 0


# transformers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def peer(stand: TextStand) -> TransformersPeer:
    return TransformersPeer(TINY, stand.tensors, torch.device("cpu"))


def logits_of(stand: TextStand, tokens: list[int]) -> torch.Tensor:
    stand.captured.reset()
    stand.captured.append(tokens)
    return torch.from_numpy(stand.captured.logits().copy())


@needs_transformers
def test_the_peer_is_the_same_model(stand: TextStand, peer: TransformersPeer) -> None:
    text = [*PREFIX, *SUFFIX]
    assert peer.check(text, logits_of(stand, text), uses_fla=False) < 1e-3
    token = stand.captured.next_token
    assert peer.cold(text, uses_fla=False)() == token
    again = peer.copied(PREFIX, SUFFIX, uses_fla=False)
    assert [again(), again()] == [token, token]


@needs_transformers
def test_another_model_is_noticed(stand: TextStand, peer: TransformersPeer) -> None:
    other = logits_of(stand, [*SUFFIX, *PREFIX])
    with pytest.raises(WrongResultError, match="not the same model"):
        peer.check([*PREFIX, *SUFFIX], other, uses_fla=False)


@needs_transformers
@pytest.mark.parametrize("uses_fla", [False, True])
def test_the_linear_attention_is_the_one_that_is_asked_for(
    stand: TextStand, peer: TransformersPeer, monkeypatch: pytest.MonkeyPatch, uses_fla: bool
) -> None:
    module = ttft_transformers._module()
    before = [getattr(module, name) for name in ttft_transformers._RULES]
    own = ttft_transformers._rules_of(uses_fla=False)
    asked: list[bool] = []

    def rules_of(*, uses_fla: bool) -> tuple[Callable[..., object], ...]:
        def note(*args: object, **kwargs: object) -> object:
            asked.append(uses_fla)
            return own[0](*args, **kwargs)

        return note, own[1]

    monkeypatch.setattr(ttft_transformers, "_rules_of", rules_of)
    peer.check(PREFIX, logits_of(stand, PREFIX), uses_fla=uses_fla)
    assert asked == [uses_fla] * len(TINY.config.linear_layers)
    assert [getattr(module, name) for name in ttft_transformers._RULES] == before


@needs_transformers
def test_a_linear_attention_that_did_not_run_is_noticed(
    stand: TextStand, peer: TransformersPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ttft_transformers, "_RULES", ("first", "second"))
    module = ttft_transformers._module()
    for name in ("first", "second"):
        monkeypatch.setattr(module, name, None, raising=False)
    with pytest.raises(WrongResultError, match="did not run"):
        peer.check(PREFIX, logits_of(stand, PREFIX), uses_fla=False)


def test_without_transformers_its_rows_say_what_to_install(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ttft_transformers, "why_absent", lambda: "pip install transformers")
    monkeypatch.setattr(ttft_set, "run", lambda *arguments: ([], []))
    result = ttft.run(make_context())
    missing = [row for row in result.rows if row.median is None]
    assert missing
    assert all("transformers" in row.name for row in missing)
    assert all(row.title.endswith("(absent: pip install transformers)") for row in missing)


@needs_transformers
def test_a_peer_that_fails_is_absent_and_says_why(
    make_context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(self: TransformersPeer, *args: object, **kwargs: object) -> float:
        raise RuntimeError("no such kernel\nand a trace")

    monkeypatch.setattr(TransformersPeer, "check", check)
    monkeypatch.setattr(ttft_set, "run", lambda *arguments: ([], []))
    result = ttft.run(make_context())
    rows = [row for row in result.rows if row.name.startswith(ttft_peers.WITHOUT_FLA)]
    assert rows
    assert all(row.note == "absent: no such kernel" for row in rows)
    assert all(row.median is None for row in result.rows if row.name.startswith(ttft_peers.COPIED))


def test_without_fla_its_row_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert ttft_transformers.why_no_fla("cuda") == "pip install flash-linear-attention"
    assert "CUDA" in ttft_transformers.why_no_fla("cpu")


# ablation -------------------------------------------------------------------------------------


def test_the_ablation_says_where_each_part_is_missed(make_context: Callable[..., Context]) -> None:
    result = ttft.run(make_context(is_ablation=True))
    assert len(result.rows) == 5
    control, *others = result.rows
    assert control.median == 64
    assert "nothing" in control.name
    assert all(row.median is not None and row.median < 64 for row in others)
    assert all("diverges" in row.title for row in others)
    assert not result.missed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("is_ablation", [False, True])
def test_the_bench_runs_on_a_device(
    make_context: Callable[..., Context], is_ablation: bool
) -> None:
    context = dataclasses.replace(make_context(is_ablation=is_ablation), device=GpuDevice())
    result = ttft.run(context)
    bytes_alike = [row for row in result.rows if row.unit in ("logits", "tokens")]
    assert bytes_alike
    assert all(row.met for row in bytes_alike)
