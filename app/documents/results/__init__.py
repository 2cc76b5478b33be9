"""What a result is: its forms, how they are used, its answers and their scores."""
