"""Forks writers of a goal channel on command, so that a hundred of them start in seconds.

    crew.py ENGINE

Each line of standard input, ``write`` or ``commit COUNT``, starts one in a child; its first
line of output is ``ready PID``. A writer that writes never comes to its end; one that commits
COUNT goals (0 for as many as it lives to) prints ``done SEQUENCE``, the engine's number of its
last. Each goal's scene is one number throughout, and its ``source_sequence`` the writer's PID.
"""

from __future__ import annotations

import os
import signal
import sys

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import NoFreeSlotError

WAIT_S = 60.0


def say(line: str) -> None:
    """Print in one piece: siblings share the pipe."""
    os.write(1, f"{line}\n".encode())


def write_for_ever(client: EngineClient) -> None:
    """Change a slot on loan without end."""
    scene = client.open_writer("goal").loan().fields["scene"]
    say(f"ready {os.getpid()}")
    while True:
        for number in range(7):
            scene[:] = number


def commit(client: EngineClient, count: int) -> None:
    """Commit goals as fast as it goes."""
    writer = client.open_writer("goal")
    done = sequence = 0
    say(f"ready {os.getpid()}")
    while done < count or not count:
        try:
            loan = writer.loan()
        except NoFreeSlotError:
            continue
        loan.fields["values"][:] = 0.5
        loan.fields["scene"][:] = done % 97
        stamp_ns = done + 1_000
        answer = writer.commit(
            loan, stamp_ns=stamp_ns, source_sequence=os.getpid(), loan_next=done + 1 != count
        )
        sequence = answer.sequence
        done += 1
    say(f"done {sequence}")


def main() -> None:
    """Obey until the input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        verb, *rest = line.split()
        if os.fork() == 0:
            with EngineClient(sys.argv[1], timeout_s=WAIT_S) as client:
                if verb == "write":
                    write_for_ever(client)
                else:
                    commit(client, int(rest[0]))
            os._exit(0)


if __name__ == "__main__":
    main()
