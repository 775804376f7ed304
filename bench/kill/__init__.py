"""kill -9 at random points of a real run, resume, and look whether anything was lost or counted twice."""
