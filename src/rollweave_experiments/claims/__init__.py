"""What the papers report, row by row, and what we claim about each row: data only.

These tables were committed before the first measurement. A later change of a claim is a commit of its own that
says why, so that `git log -p` on this folder tells whether a claim followed the evidence or the other way round.
"""
