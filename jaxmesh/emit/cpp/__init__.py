"""emit/cpp"""
