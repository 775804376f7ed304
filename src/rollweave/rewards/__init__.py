"""Rewards score a finished trajectory."""
