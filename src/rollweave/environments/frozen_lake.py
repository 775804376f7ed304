"""FrozenLake as a text agent: cross the ice, do not fall into a hole.

The player sees the grid and what lies around it, and answers with a letter or a word. An answer that is no
move costs a turn and says so. Held-out maps are held out by content: a small map comes up again under many
seeds, so which split a map belongs to is a digest of the map itself, and a task's seed only picks among them.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from typing import Any

from rollweave.environments.protocol import Message, Observation, StepResult
from rollweave.seeds import derive

MOVES = {"L": (0, -1), "D": (1, 0), "R": (0, 1), "U": (-1, 0)}  # in gymnasium's order of actions
WORDS = {
    name: letter
    for letter, word in zip("LDRU", ("left", "down", "right", "up"), strict=True)
    for name in (letter.lower(), word)
}
RULES = (
    "You stand on a frozen lake (@). Walk over ice (.) to the goal (G) without stepping into a hole (O). "
    "Below the map you read what lies to your left (L), down (D), right (R) and up (U); # is the edge. "
    "Each turn, answer with one letter: L, D, R or U."
)
HELD_OUT_ONE_IN = 5
"""Every fifth map, by digest, is never trained on."""


def render(grid: list[str], row: int, column: int) -> str:
    """What the agent sees: the map with the player on it, then its four neighbours."""
    lines = [[_tile(tile) for tile in line] for line in grid]
    around = " ".join(letter + _look(grid, row + down, column + right) for letter, (down, right) in MOVES.items())
    lines[row][column] = "@"
    return "\n".join(["".join(line) for line in lines] + [around])


def parse(answer: str) -> str | None:
    """The first word of the answer that is a move, as its letter."""
    words = (word.strip("'").casefold() for word in re.findall(r"[\w']+", answer))
    return next((WORDS[word] for word in words if word in WORDS), None)


class FrozenLake:
    """Same seed, same map, same slips: an episode is a function of its seed and its actions."""

    deterministic = True

    def __init__(self, map: str = "random", size: int = 4, slippery: bool = False, instructions: bool = False) -> None:
        self.map = map
        self.size = size
        self.slippery = slippery
        self.instructions = instructions

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        from gymnasium.envs.toy_text.frozen_lake import MAPS, FrozenLakeEnv

        fixed = MAPS[f"{self.size}x{self.size}"]
        self.grid = fixed if self.map == "fixed" else random_map(self.size, seed, data.get("split"))
        # The bare class, not gymnasium.make: the turn limit is the rollout's business.
        self.env = FrozenLakeEnv(desc=self.grid, is_slippery=self.slippery)
        self.env.reset(seed=seed)
        if not self.instructions:
            return self._screen()
        rules: list[Message] = [{"role": "system", "content": RULES}, {"role": "user", "content": self._screen()}]
        return rules

    async def step(self, action: str) -> StepResult:
        letter = parse(action)
        if letter is None:
            return StepResult(f"Not a move: answer L, D, R or U.\n{self._screen()}")
        _, reward, done, _, _ = self.env.step("LDRU".index(letter))
        if not done:
            return StepResult(self._screen())
        ending = "You reached the goal." if reward else "You fell into a hole."
        return StepResult(ending, float(reward), done=True)

    async def close(self) -> None:
        pass  # never rendered, so gymnasium holds nothing

    def scripted_action(self, rng: random.Random) -> str:
        return rng.choice("LDRU")

    def _screen(self) -> str:
        return render(self.grid, *divmod(int(self.env.s), self.size))


def random_map(size: int, seed: int, split: str | None = None) -> list[str]:
    """A solvable map; with a split (`train` or `heldout`), one that belongs to it."""
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


def _tile(letter: str) -> str:
    return {"H": "O", "G": "G"}.get(letter, ".")


def _look(grid: list[str], row: int, column: int) -> str:
    inside = 0 <= row < len(grid) and 0 <= column < len(grid)
    return _tile(grid[row][column]) if inside else "#"
