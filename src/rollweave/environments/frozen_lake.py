"""FrozenLake played in text: the player crosses the ice and must not fall into a hole.

The player sees the map at the start and, in every turn, the squares around it with its own tracks. It answers
with a letter or a word. An answer that is not a move costs a turn, and the player is told so.

The same small map comes up under many seeds. So the split that a map belongs to (training or held out) is a digest of
the map itself, and a task's seed only chooses among the maps of its split.
"""

from __future__ import annotations

import copy
import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from rollweave.environments.protocol import Message, Observation, StepResult
from rollweave.seeds import derive

MOVES = {"L": (0, -1), "D": (1, 0), "R": (0, 1), "U": (-1, 0)}  # in gymnasium's order of actions
WORDS = {"l": "L", "left": "L", "d": "D", "down": "D", "r": "R", "right": "R", "u": "U", "up": "U"}
RULES = (
    "You stand on a frozen lake (@). Walk over ice (.) to the goal (G) without stepping into a hole (O). "
    "A line of four signs tells what lies to your left, down, right and up: a capital letter (L, D, R, U) is ice or "
    "the goal, a small letter (l, d, r, u) a hole, an arrow (< v > ^) ice where you have been, - the edge of the lake. "
    "Each turn, answer with one capital letter: L, D, R or U."
)
TRACKS = {"L": "<", "D": "v", "R": ">", "U": "^"}
Square = tuple[int, int]

HELD_OUT_ONE_IN = 5
"""Every fifth map, by digest, is never trained on."""


def draw_map(grid: list[str], player: Square, tracks: set[Square]) -> str:
    """Draw the whole lake as text."""
    size = range(len(grid))
    return "\n".join(
        "".join("@" if (row, column) == player else _tile(grid, (row, column), tracks) for column in size)
        for row in size
    )


def look_around(grid: list[str], player: Square, tracks: set[Square]) -> str:
    """Describe the squares to the left, down, right and up, with one sign each: `-Dr^`.

    Every sign shows its own direction, so a small policy need not count positions to know what it means.
    """
    return "".join(_sign(letter, grid, _next_to(player, letter), tracks) for letter in MOVES)


def parse(answer: str) -> str | None:
    """The first word of the answer that is a move, as its letter."""
    words = (word.strip("'").casefold() for word in re.findall(r"[\w']+", answer))
    return next((WORDS[word] for word in words if word in WORDS), None)


@dataclass(eq=False)
class FrozenLake:
    """One lake. An episode is a function of its seed and its actions: the same seed gives the same map and slips."""

    deterministic: ClassVar[bool] = True
    map: str = "random"
    size: int = 4
    slippery: bool = False
    instructions: bool = False
    map_every_turn: bool = False

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        from gymnasium.envs.toy_text.frozen_lake import MAPS

        fixed = MAPS[f"{self.size}x{self.size}"]
        self.grid = fixed if self.map == "fixed" else random_map(self.size, seed, data.get("split"))
        # Episodes share the tables; their own state is the position and the generator, which `reset` makes.
        self.env = copy.copy(_lake(tuple(self.grid), self.slippery))
        self.env.reset(seed=seed)
        self.tracks: set[Square] = {self._place()}
        screen = self._screen(with_map=True)
        if not self.instructions:
            return screen
        rules: list[Message] = [{"role": "system", "content": RULES}, {"role": "user", "content": screen}]
        return rules

    async def step(self, action: str) -> StepResult:
        letter = parse(action)
        if letter is None:
            return StepResult(f"Not a move: answer L, D, R or U.\n{self._screen(self.map_every_turn)}")
        _, reward, done, _, _ = self.env.step("LDRU".index(letter))
        self.tracks.add(self._place())
        if not done:
            return StepResult(self._screen(self.map_every_turn))
        ending = "You reached the goal." if reward else "You fell into a hole."
        return StepResult(ending, float(reward), done=True)

    def scripted_action(self, rng: random.Random) -> str:
        """Choose a move that stays inside the lake."""
        return rng.choice([letter for letter in MOVES if _inside(self.grid, _next_to(self._place(), letter))])

    def _place(self) -> Square:
        return divmod(int(self.env.s), self.size)

    def _screen(self, with_map: bool) -> str:
        around = look_around(self.grid, self._place(), self.tracks)
        return f"{draw_map(self.grid, self._place(), self.tracks)}\n{around}" if with_map else around


@lru_cache(maxsize=1024)  # making its tables takes a millisecond
def _lake(grid: tuple[str, ...], slippery: bool) -> Any:
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

    # The class itself and not `gymnasium.make`, which would add a turn limit: the rollout has its own.
    return FrozenLakeEnv(desc=list(grid), is_slippery=slippery)


@lru_cache(maxsize=1024)  # the members of a group share their map
def random_map(size: int, seed: int, split: str | None = None) -> list[str]:
    """Make a solvable map; if a split is given (`train` or `heldout`), one of that split."""
    from gymnasium.envs.toy_text.frozen_lake import generate_random_map

    attempt = 0
    while True:
        grid: list[str] = generate_random_map(size, p=0.8, seed=derive(seed, "map", attempt) & 0x7FFF_FFFF)
        if split is None or held_out(grid) == (split == "heldout"):
            return grid
        attempt += 1


def held_out(grid: list[str]) -> bool:
    digest = hashlib.blake2b("".join(grid).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


def _tile(grid: list[str], place: Square, tracks: set[Square]) -> str:
    ice = "," if place in tracks else "."
    return {"H": "O", "G": "G"}.get(grid[place[0]][place[1]], ice)


def _sign(letter: str, grid: list[str], place: Square, tracks: set[Square]) -> str:
    if not _inside(grid, place):
        return "-"
    return {"O": letter.lower(), ",": TRACKS[letter]}.get(_tile(grid, place, tracks), letter)


def _next_to(place: Square, letter: str) -> Square:
    down, right = MOVES[letter]
    return place[0] + down, place[1] + right


def _inside(grid: list[str], place: Square) -> bool:
    return 0 <= place[0] < len(grid) and 0 <= place[1] < len(grid)
