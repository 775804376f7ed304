"""The data of the experiments: what the papers report, row by row, and what we claim about each row.

These tables were committed before the first measurement. A later change of a claim is a commit of its own that
says why. So `git log -p` on this folder shows whether a claim was changed after its result was known.
"""
