class Choice:
    def __init__(self):
        self.helper = honest

    def __repr__(self):
        return "Choice"
