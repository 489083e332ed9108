"""What is written for those who read a store as a RocketMQ broker does."""
