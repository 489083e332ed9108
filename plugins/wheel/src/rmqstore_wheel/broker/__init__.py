"""What is written for those that read a store as a RocketMQ broker does."""
