"""What multiplexing costs on real traces: RollMux against Opt, ours against RollMux, and what each switch is worth."""
