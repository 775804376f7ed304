"""Contracts: what every engine, trainer, environment, reward and weight store owes its callers.

A contract is a list of behaviours, each a plain function over something "under test", which says how one kind is made
and run on its clock. `tests/test_contracts_*.py` name the kinds. A new kind (vLLM, a store on other machines) is one
more entry there, and passes when it keeps all that the others keep.
"""
