"""The papers' experiments as presets: what a paper says beside what our control plane does on modelled hardware.

claims/      what the papers report and what we claim about each row, written down before anything was measured
frame.py     Claim, Study, Experiment, Measurement, Row: what an experiment is
rollart/ flash/ rollmux/   one small file per experiment: its scenarios and what is compared
catalogue.py               the list of them all
verdict.py, plot.py, page.py, text.py   judging, drawing and printing, the same for all
"""
