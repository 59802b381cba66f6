"""What a container of this image does by itself: services, report, help, doctor. Standard library only."""
