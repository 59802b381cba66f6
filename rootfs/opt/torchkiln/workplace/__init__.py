"""The program behind the entrypoint: services, report, help, doctor. It uses the standard library only."""
