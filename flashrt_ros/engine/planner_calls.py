"""A planner's turns as typed methods; imports without torch."""

from __future__ import annotations

from flashrt_ros.engine import protocol
from flashrt_ros.engine.capsule_calls import CapsuleCalls

TURN_TIMEOUT_S = 600.0
"""How long a call waits for the end of a turn, unless it says otherwise."""


class PlannerCalls(CapsuleCalls):
    """The verbs of a planner engine; a policy's engine refuses them with UnsupportedError."""

    def instruct(
        self,
        prompt: str | bytes = b"",
        *,
        env_index: int = 0,
        tokens: tuple[int, ...] = (),
        context: str | bytes = b"",
        mode: str = "new",
        capsule: str = "",
        max_tokens: int = 0,
        temperature: float = -1.0,
        seed: int = -1,
        seeds: tuple[int, ...] = (),
        scorer: str = "",
        timeout_s: float = TURN_TIMEOUT_S,
    ) -> protocol.TurnDone:
        """Have a plan made, and wait for it; a turn under way is abandoned.

        Args:
            prompt: The instruction; line breaks count as blanks.
            env_index: Environment.
            tokens: Token ids in place of all text.
            context: A line before the instruction, such as where things are.
            mode: "new" begins from a prefix or capsule, "append" after the turn before.
            capsule: Id or name to begin from; "" for the prefix library's end.
            max_tokens: Most tokens of the plan; 0 for the engine's own number.
            temperature: Of sampling; 0 takes the likeliest token, -1 the engine's own.
            seed: Of sampling; -1 for the engine's own.
            seeds: Make a plan with each, and commit the one of the best score.
            scorer: Name of what judges them; "" for the log-probability.
            timeout_s: How long to wait.

        Raises:
            PayloadShapeError: The prompt is empty, or longer than the arena has room for.
            PayloadTypeError: It is no UTF-8.
            PayloadRangeError: The tokenizer lacks a part of it, or a token is none.
            ParameterRangeError: No plan fits in ``max_tokens``, or no such temperature.
            SpecError: The arguments contradict each other.
            AbandonedError: A newer instruction or a verb ended the turn.
        """
        request = protocol.Instruct(
            0,
            env_index,
            _bytes(prompt),
            tokens=tokens,
            context=_bytes(context),
            mode=mode,
            capsule=capsule,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            seeds=seeds,
            scorer=scorer,
        )
        return self.call(request, protocol.TurnDone, timeout_s=timeout_s)

    def begin_turn(
        self,
        prompt: str | bytes,
        *,
        env_index: int = 0,
        context: str | bytes = b"",
        mode: str = "new",
        seeds: tuple[int, ...] = (),
        temperature: float = -1.0,
        scorer: str = "",
    ) -> protocol.TurnBegun:
        """Have a plan made and don't wait: events tell its subgoals and its end.

        Args:
            prompt: As :meth:`instruct`.
            env_index: As :meth:`instruct`.
            context: As :meth:`instruct`.
            mode: As :meth:`instruct`.
            seeds: As :meth:`instruct`.
            temperature: As :meth:`instruct`.
            scorer: As :meth:`instruct`.

        Raises:
            FlashrtError: As :meth:`instruct`, but for the end of the turn.
        """
        request = protocol.Instruct(
            0,
            env_index,
            _bytes(prompt),
            context=_bytes(context),
            mode=mode,
            seeds=seeds,
            temperature=temperature,
            scorer=scorer,
            wait=False,
        )
        return self.call(request, protocol.TurnBegun)

    def cancel_turn(self, *, env_index: int = 0) -> protocol.Moved:
        """End the turn under way for good; the text is as before it.

        Raises:
            NotActiveError: There is none.
        """
        return self.call(protocol.CancelTurn(0, env_index), protocol.Moved)

    def resume_turn(
        self, *, env_index: int = 0, timeout_s: float = TURN_TIMEOUT_S
    ) -> protocol.TurnDone:
        """Go on with the turn interrupted last, and wait for its end.

        Raises:
            NothingToResumeError: There is none.
            AbandonedError: As :meth:`instruct`.
        """
        request = protocol.ResumeTurn(0, env_index)
        return self.call(request, protocol.TurnDone, timeout_s=timeout_s)

    def set_prefix(
        self, name: str, text: str | bytes, *, timeout_s: float = TURN_TIMEOUT_S
    ) -> None:
        """Replace the text of a prefix; return once it and those after it are built.

        Raises:
            UnsupportedError: The engine has no prefix of this name.
            PayloadShapeError: It is empty, or all of them don't fit in the arena.
            PayloadTypeError: It is no UTF-8.
            PayloadRangeError: The tokenizer lacks a part of it.
        """
        self.call(protocol.SetPrefix(0, name, _bytes(text)), protocol.Ack, timeout_s=timeout_s)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
