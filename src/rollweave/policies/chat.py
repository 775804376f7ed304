"""Turns a conversation into tokens that are only ever appended.

A chat template renders whole conversations, but a trajectory only grows: after the first observation come the
sampled answer, then the tokens of the next observation, and so on. `ChatFormat` finds out from the template what
those next tokens are: it renders a conversation with a marker in place of an answer and takes the text after the
marker. Sampled tokens are never rendered again, so a template that would change them is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from rollweave.environments.protocol import Message, Observation
from rollweave.errors import ModelError
from rollweave.trajectory import TokenIds, token_ids

_ANSWER = "rollweave-answer"
_THOUGHT = "rollweave-thought"
_QUESTION: Message = {"role": "user", "content": "rollweave-question"}


class ChatFormat:
    """Makes the tokens of a trajectory's observations: `open` for the first, `reply` for each later one."""

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template:
            raise ModelError(
                f"the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template; use an "
                "instruction-tuned model, or add a chat_template.jinja file to the model's folder"
            )
        self.tokenizer = tokenizer
        # Observations repeat, because a board has few states. With a cache most replies are a dictionary look-up.
        remember = lru_cache(maxsize=4096)
        self._tokens_of_opening = remember(lambda text: self._shared(self._render([_user(text)])))
        self._tokens_after = remember(lambda text: self._shared(self._after_answer([_user(text)])))
        self._multi_turn_checked = False  # checked by the first `reply`: a single-turn job may use any template

    @classmethod
    def of(cls, folder: Path) -> ChatFormat:
        """Load the chat format of a Hugging Face folder."""
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(folder))

    def open(self, observation: Observation) -> TokenIds:
        """The tokens of the first observation, up to the position where the answer begins."""
        if isinstance(observation, str):
            return self._tokens_of_opening(observation)
        return token_ids(self._encode(self._render(observation)))

    def reply(self, observation: Observation, answered_end: bool) -> TokenIds:
        """The tokens to append after an answer: the next observation, up to the position where the next answer begins.

        `answered_end` says whether the answer's last token was the end of turn (see `ended`). If it was not, the
        result begins with the end of turn.
        """
        if not self._multi_turn_checked:
            self._check_multi_turn()
        if isinstance(observation, str):
            tokens = self._tokens_after(observation)
        else:
            tokens = token_ids(self._encode(self._after_answer(observation)))
        return tokens[self._end_position(tokens.tolist()) + 1 :] if answered_end else tokens

    def ended(self, answer: TokenIds) -> bool:
        """Whether a sampled answer ended with the end-of-turn token."""
        return len(answer) > 0 and answer.item(-1) in self.stop_tokens

    @cached_property
    def stop_tokens(self) -> tuple[int, ...]:
        """The token that ends a turn in this template."""
        tokens = self._encode(self._after_answer([_QUESTION]))
        return (tokens[self._end_position(tokens)],)

    def _check_multi_turn(self) -> None:
        """Refuse a template that changes earlier parts of a growing conversation."""
        opened = self._render([_QUESTION])
        after = self._after_answer([_QUESTION])
        once = [_QUESTION, _assistant(_ANSWER), _QUESTION]
        twice = [*once, _assistant("again"), _QUESTION]
        if self._render(once) != opened + _ANSWER + after:
            raise self._rewrites("the text before an answer changes once the answer is there")
        if self._render(twice) != opened + _ANSWER + after + "again" + after:
            raise self._rewrites("later turns are not rendered like earlier ones")
        thought = f"<think>\n{_THOUGHT}\n</think>\n\n{_ANSWER}"
        if thought not in self._render([_QUESTION, _assistant(thought), _QUESTION]):
            raise self._rewrites("the thinking of earlier answers is removed or changed")
        whole = self._encode(self._render(once))
        if whole != (*self._encode(opened), *self._encode(_ANSWER), *self._encode(after)):
            raise self._rewrites("its turns do not tokenize separately")
        self._multi_turn_checked = True

    def _rewrites(self, how: str) -> ModelError:
        return ModelError(
            f"the chat template of {self.tokenizer.name_or_path or 'this model'} rewrites the conversation ({how}), "
            "but tokens that were sampled must stay as they are: put a chat_template.jinja into the model's folder "
            "that renders every message whole and the same way wherever it stands"
        )

    def _end_position(self, tokens: Sequence[int]) -> int:
        """The position of the end of turn, which is the first special token after the answer."""
        end = next((i for i, token in enumerate(tokens[:4]) if token in self._special_ids), None)
        if end is None:
            raise ModelError(
                f"the chat template of {self.tokenizer.name_or_path or 'this model'} does not end an answer with a "
                "special token, so generation could not stop there: add one to its chat_template.jinja"
            )
        return end

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.tokenizer.all_special_ids) | frozenset(self.tokenizer.added_tokens_decoder)

    # ------------------------------------------------------------------------------- template and tokenizer

    def _after_answer(self, messages: list[Message]) -> str:
        text = self._render([_QUESTION, _assistant(_ANSWER), *messages])
        _, found, after = text.partition(_ANSWER)
        if not found:
            raise self._rewrites("an answer does not appear in it as it was given")
        return after

    def _render(self, messages: list[Message]) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ModelError(
                f"the chat template of {self.tokenizer.name_or_path or 'this model'} refuses a conversation with the "
                f"roles {roles}: {error}; change the environment's messages or the template"
            ) from error
        return text

    def _shared(self, text: str) -> TokenIds:
        """Tokens that many trajectories may hold: read-only."""
        tokens = token_ids(self._encode(text))
        tokens.flags.writeable = False
        return tokens

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}
