"""The modes of training side by side: train steps per hour of `sync`, `sync+` and `rollart` on the same job."""
