"""Many jobs woven into each other: one job's idle phase runs another job's active one.

Pure decisions first (profile, group, coexec, slo, placement, scheduler), then the replay of traces and the daemon,
both of which call the very same `Scheduler`.
"""
