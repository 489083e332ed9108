"""The queues of the pop side: messages read by queue offset, and checked."""
