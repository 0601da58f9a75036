"""The commands: settings and options in, values out. The command line prints the values and chooses the exit code.

Commands that begin, follow or change a job are the room `crawlog/jobs/`. Each of the others is one file here:

    fetch, parse, shell       one_page: a page asked for now, or stored; what a spider makes of it
    init, genspider           new_spider: folders and files to begin with
    --spider                  named_spider: the spider of a command, as its child process describes it

    up (down, status)   control   why   dead   replay   verify (repair)   export   doctor   probe   projects
"""
