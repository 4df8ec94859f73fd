"""What engines of one process read of each other: shared channels, and outlets that feed goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.errors import ConfigError

if TYPE_CHECKING:
    from flashrt_ros.engine.engine import Engine
    from flashrt_ros.engine.outlet import Outlet
    from flashrt_ros.engine.shared import SharedChannel
    from flashrt_ros.models.base import PolicyModel


class Commons:
    """The channels that several engines of a process read, made as the first of them is built.

    Args:
        configs: Of every engine of a policy in the process, in the order of building.

    Raises:
        ConfigError: A channel is shared with nobody or by engines of two devices, or it is fed
            twice, or by what no engine built before leaves.
    """

    def __init__(self, configs: Sequence[EngineConfig]) -> None:
        self._readers: dict[str, list[EngineConfig]] = {}
        self._engines: dict[str, Engine] = {}
        self._channels: dict[str, SharedChannel] = {}
        for config in configs:
            for channel in dict.fromkeys(config.shared_channels):
                self._readers.setdefault(channel, []).append(config)
        for channel, readers in self._readers.items():
            _check_readers(channel, readers)
        names: list[str] = []
        for config in configs:
            fed: set[str] = set()
            for entry in config.fed_channels:
                channel, engine, _ = parse_fed(entry)
                if channel in fed:
                    raise ConfigError(
                        f"channel '{channel}' of engine '{config.name}' is fed twice",
                        expected="one entry of 'fed_channels' for each channel",
                    )
                fed.add(channel)
                if engine not in names:
                    raise ConfigError(
                        f"engine '{config.name}' can't be fed by engine '{engine}'",
                        expected="an engine of the same process, named before it",
                        found=", ".join(names) or "none",
                    )
            names.append(config.name)

    def shared(
        self, config: EngineConfig, model: PolicyModel, owned: ExitStack
    ) -> Mapping[str, SharedChannel]:
        """Return the channels that an engine reads together with others.

        Args:
            config: The engine's.
            model: The engine's; the first one says what a slot holds.
            owned: Closes what is made here, after the engines that are entered later.

        Raises:
            ConfigError: The model has no such channel.
            FlashrtError: There is no memory for it.
        """
        from flashrt_ros.engine.sharing import share_channel

        specs = {spec.name: spec for spec in model.channels()}
        for name in config.shared_channels:
            if name not in specs:
                raise ConfigError(
                    f"model '{model.name}' has no channel '{name}' to share",
                    expected=" or ".join(specs),
                )
            if name not in self._channels:
                readers = self._readers[name]
                self._channels[name] = owned.enter_context(
                    share_channel(
                        specs[name],
                        device=config.device,
                        num_environments=max(one.num_environments for one in readers),
                        num_consumers=len(readers),
                        num_branches=max(one.num_branch_lanes for one in readers),
                    )
                )
        return {name: self._channels[name] for name in config.shared_channels}

    def feeds(self, config: EngineConfig) -> Mapping[str, Outlet]:
        """Return what other engines leave for an engine's channels.

        Raises:
            UnknownChannelError: The model of the other engine has no such outlet.
        """
        found: dict[str, Outlet] = {}
        for entry in config.fed_channels:
            channel, engine, outlet = parse_fed(entry)
            found[channel] = self._engines[engine].outlet(outlet)
        return found

    def add(self, name: str, engine: Engine) -> None:
        """Let engines that are built later be fed by one."""
        self._engines[name] = engine


def parse_fed(entry: str) -> tuple[str, str, str]:
    """Read ``channel = engine:outlet``.

    Returns:
        Channel, engine and outlet.

    Raises:
        ConfigError: It has another form.
    """
    channel, _, source = (part.strip() for part in entry.partition("="))
    engine, _, outlet = (part.strip() for part in source.rpartition(":"))
    if not (channel and engine and outlet):
        raise ConfigError(
            "an entry of engine parameter 'fed_channels' can't be read",
            expected="'channel = engine:outlet'",
            found=repr(entry[:80]),
        )
    return channel, engine, outlet


def _check_readers(channel: str, readers: Sequence[EngineConfig]) -> None:
    names = ", ".join(reader.name for reader in readers)
    if len(readers) < 2:
        raise ConfigError(
            f"engine '{names}' shares channel '{channel}' with nobody",
            expected="'shared_channels' of another engine of the same process to name it too",
            fix="start both in one process: python -m flashrt_ros.engine --config ... --config ...",
        )
    if len({_numbered(reader.device) for reader in readers}) > 1:
        raise ConfigError(
            f"channel '{channel}' can't be shared by engines of different devices",
            expected="the same 'device' for each",
            found=", ".join(f"{reader.name}: {reader.device}" for reader in readers),
        )


def _numbered(device: str) -> str:
    """Return a device's name with its number: "cuda" is the first."""
    return "cuda:0" if device == "cuda" else device
