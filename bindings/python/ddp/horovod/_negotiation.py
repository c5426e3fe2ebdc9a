"""Which requests all ranks have made, so that every rank runs the same ones in the same order.

In each round every rank tells all ranks which requests it has made since the last round. Every rank keeps the same table from that, so
nobody has to decide. A description that all ranks have seen before travels as its number.
"""
from __future__ import annotations

import json
import struct
import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ._requests import Description, Request, decoded, disagreement, named

MOST_KNOWN = 8192  # descriptions; then all ranks forget them in the same round


class Ready(NamedTuple):
    """A request that all ranks have made, or that has failed. `descriptions`: by rank; ranks that have joined have none."""

    key: str
    descriptions: Dict[int, Description]
    error: Optional[str] = None

    @property
    def description(self) -> Description:
        """The description of the lowest rank that has made the request."""
        return self.descriptions[min(self.descriptions)]


class Negotiation:
    """The table of one process set. ranks: in the world, in the order of the set; all ranks here are such."""

    def __init__(self, ranks: Sequence[int]):
        self._ranks = list(ranks)
        self._numbers: Dict[str, int] = {}
        self._known: List[Description] = []
        self._waiting: Dict[str, Dict[int, Description]] = {}
        self._since: Dict[str, float] = {}
        self._joined: List[int] = []  # in the order in which they joined

    # MESSAGES: the count of numbers, the numbers, and new descriptions and keys that are given up, one a line.

    def message(self, requests: Iterable[Request], given_up: Sequence[Tuple[str, str]] = ()) -> bytes:
        """The message of this rank in this round."""
        numbers, lines = [], []
        for request in requests:
            number = self._numbers.get(request.text)
            if number is None:
                lines.append(request.text)
            else:
                numbers.append(number)
        lines += ["!" + json.dumps(each) for each in given_up]
        return struct.pack(f"<{1 + len(numbers)}I", len(numbers), *numbers) + "\n".join(lines).encode()

    def take(self, messages: Sequence[bytes]) -> List[Ready]:
        """Takes the messages of all ranks, and returns the requests that can run now, in the same order on each rank."""
        touched: Dict[str, None] = {}
        failed: Dict[str, str] = {}
        joined_before = len(self._joined)
        for rank, message in zip(self._ranks, messages):
            count = struct.unpack_from("<I", message)[0]
            descriptions = [self._known[number] for number in struct.unpack_from(f"<{count}I", message, 4)]
            text = message[4 + 4 * count:].decode()
            for line in text.split("\n") if text else ():
                if line.startswith("!"):
                    failed.setdefault(*json.loads(line[1:]))
                else:
                    descriptions.append(self._learn(line))
            for one in descriptions:
                self._waiting.setdefault(one.key, {})[rank] = one
                self._since.setdefault(one.key, time.monotonic())
                touched[one.key] = None
                if one.kind == "join":
                    self._joined.append(rank)
        if len(self._joined) != joined_before:
            touched = dict.fromkeys(self._waiting)
        ready = [self._end(key, sentence) for key, sentence in failed.items() if key in self._waiting]
        ready += [self._end(key) for key in touched if key in self._waiting and self._complete(key)]
        if len(self._known) > MOST_KNOWN:
            self._numbers.clear()
            self._known.clear()
        return ready

    def _learn(self, text: str) -> Description:
        number = self._numbers.get(text)  # another rank may have sent it in this round
        if number is None:
            number = self._numbers[text] = len(self._known)
            self._known.append(decoded(text))
        return self._known[number]

    def _complete(self, key: str) -> bool:
        waiting = self._waiting[key]
        if next(iter(waiting.values())).kind == "join":
            return len(waiting) == len(self._ranks)
        return all(rank in waiting or rank in self._joined for rank in self._ranks)

    def _end(self, key: str, error: Optional[str] = None) -> Ready:
        descriptions = self._waiting.pop(key)
        self._since.pop(key)
        absent = [rank for rank in self._ranks if rank not in descriptions]
        return Ready(key, descriptions, error or disagreement(descriptions, absent, len(self._ranks)))

    def last_joined(self) -> int:
        """All ranks have joined: the one that came last. From now on nobody has."""
        last = self._joined[-1]
        self._joined.clear()
        return last

    def overdue(self, seconds: float) -> List[Tuple[str, str]]:
        """The keys of requests that some ranks have not made for so long, each with a sentence that says which ranks."""
        now, found = time.monotonic(), []
        for key, descriptions in self._waiting.items():
            absent = [rank for rank in self._ranks if rank not in descriptions and rank not in self._joined]
            if now - self._since[key] >= seconds and next(iter(descriptions.values())).kind != "join":
                found.append((key, f"{key}: {named(sorted(descriptions), 'has', 'have')} waited for {seconds:g} s, and "
                              f"{named(absent, 'has', 'have')} not asked for it{self._instead(absent)}"))
        return found

    def _instead(self, ranks: Sequence[int]) -> str:
        """The requests for which these ranks wait, as far as they are few."""
        asked = [(rank, key) for key, descriptions in self._waiting.items() for rank in ranks if rank in descriptions]
        return "".join(f"; rank {rank} waits for {key}" for rank, key in asked[:4])
