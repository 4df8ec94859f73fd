"""Text at the border: UTF-8, tokens that are lacking, control tokens, another model's tokenizer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flashrt_ros.errors import (
    ConfigError,
    PayloadRangeError,
    PayloadShapeError,
    PayloadTypeError,
)
from flashrt_ros.models.hybrid_config import HybridConfig
from flashrt_ros.models.hybrid_tokenizer import HybridTokenizer
from test.models.hybrid.conftest import SMALL

tokenizers = pytest.importorskip("tokenizers", reason="text needs the extra 'lm'")

END = "<|im_end|>"
BYTES = 256


def config(**change: object) -> HybridConfig:
    return HybridConfig.from_json({**SMALL, "vocab_size": BYTES + 1, **change})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A tokenizer of one token for each byte, and one that ends a text."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE({letter: at for at, letter in enumerate(letters)}, [])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([END])
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.mark.parametrize("text", ["go left, then back", "hin und zurück", "往左 🤖\n", "  "])
def test_text_comes_back(path: Path, text: str) -> None:
    tokenizer = HybridTokenizer.load(path, config())
    tokens = tokenizer.encode(text)
    assert tokens == tokenizer.encode(text.encode())
    assert tokenizer.decode(tokens) == text


def test_control_tokens_are_text_unless_asked_for(path: Path) -> None:
    tokenizer = HybridTokenizer.load(path, config())
    assert tokenizer.encode(END, has_control_tokens=True) == [BYTES]
    spelt = tokenizer.encode(END)
    assert BYTES not in spelt
    assert tokenizer.decode(spelt) == END
    assert tokenizer.decode([BYTES]) == ""


@pytest.mark.parametrize("text", [b"\xff\xfe", b"caf\xc3", "\ud800"])
def test_what_is_no_utf8_is_refused(path: Path, text: str | bytes) -> None:
    with pytest.raises(PayloadTypeError, match="no text"):
        HybridTokenizer.load(path, config()).encode(text)


@pytest.mark.parametrize("text", ["", b""])
def test_an_empty_text_is_refused(path: Path, text: str | bytes) -> None:
    with pytest.raises(PayloadShapeError, match="empty"):
        HybridTokenizer.load(path, config()).encode(text)


def test_words_that_are_lacking_are_named() -> None:
    for unknown in (None, "?"):
        words = {"go": 0, "left": 1} | ({"?": 2} if unknown else {})
        model = tokenizers.models.WordPiece(words, unk_token=unknown) if unknown else None
        made = tokenizers.Tokenizer(model or tokenizers.models.BPE({"g": 0, "o": 1}, []))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer = HybridTokenizer(made, config(vocab_size=len(words)))
        with pytest.raises(PayloadRangeError, match="'sit' at character 3"):
            tokenizer.encode("go sit")


def test_tokens_that_only_pad_the_vocabulary_are_refused(path: Path) -> None:
    tokenizer = HybridTokenizer.load(path, config(vocab_size=512))
    for token in (511, -1):
        with pytest.raises(PayloadRangeError, match=f"found {token}"):
            tokenizer.decode([72, token])


@pytest.mark.parametrize(
    "change", [{"vocab_size": BYTES}, {"vocab_size": 4096}, {"eos_token_id": 300}]
)
def test_another_models_tokenizer_is_refused(path: Path, change: dict[str, object]) -> None:
    change = {"vocab_size": 512, **change}
    with pytest.raises(ConfigError, match="own checkpoint"):
        HybridTokenizer.load(path, config(**change))


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ConfigError, match="can't be read"):
        HybridTokenizer.load(path, config())
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="can't be read"):
        HybridTokenizer.load(path, config())


def test_without_the_package_the_error_names_the_extra(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"flashrt_ros\[lm\]"):
        HybridTokenizer.load(path, config())
