"""The wheel engine of rmqstore: a timer wheel over a commit log, in RocketMQ 5's file formats."""
