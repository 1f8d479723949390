"""How good scores are: ranking and calibration against labels, streamed over a finished output."""
