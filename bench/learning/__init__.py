"""Does staleness cost learning? Steps to a reward, `sync` against `rollart` at growing alpha, loss by loss."""
