"""emit/python"""
