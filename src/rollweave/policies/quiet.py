"""transformers draws a progress bar for every load and save; bars of a second would tear the live view."""

from __future__ import annotations


def no_progress_bars() -> None:
    """In this process, from now on."""
    from transformers.utils import logging

    logging.disable_progress_bar()
