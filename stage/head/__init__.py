"""What the first stage of a pipeline does beyond computing: admits requests, schedules them, reports their endings."""
