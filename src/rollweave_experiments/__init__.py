"""The papers' experiments as presets: what a paper says beside what our control plane does on modelled hardware.

claims/                    what the papers report and what we claim about each row
frame.py                   Claim, Study, Experiment, Measurement: what an experiment is
setup.py                   pools, tasks and simulations, the building blocks of presets
rollart/ flash/ rollmux/   one small file per experiment: its scenarios and what is compared
catalogue.py               the list of them all, and running them
verdict.py                 judging what was measured
text.py plot.py page.py document.py save.py listing.py   tables, plots, pages, files
"""
