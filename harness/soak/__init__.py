"""Many passing runs, slow ones among them, of which the monitor must call none a hang."""
