"""The papers' experiments as presets: they compare what a paper reports with our control plane on modelled hardware.

claims/                    what the papers report, and what we claim about each row
frame.py                   Claim, Study, Experiment, Measurement: what an experiment is
setup.py                   pools, tasks and simulations, the building blocks of presets
rollart/ flash/ rollmux/   one small file per experiment: its scenarios and what is compared
baselines/                 the policies that RollMux compares with, for `rollweave mux simulate --policy`
catalogue.py               the list of all experiments, and how they are run
verdict.py                 compares measurements with claims
text.py plot.py page.py document.py save.py listing.py   tables, plots, pages, files
"""
