"""Projects: locks the packages that a folder requires for the image of a cell, and plans their image."""
