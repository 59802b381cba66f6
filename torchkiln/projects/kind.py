"""Projects as a kind of images, for the sessions of the core that publish and verify images."""

from __future__ import annotations

from torchkiln.oci.layout import ImageOnDisk
from torchkiln.projects.bill import bill_of_project
from torchkiln.projects.gate.read import judge_by_reports, project_image
from torchkiln.projects.smoke.account import is_project
from torchkiln.projects.verify_project import verify_below, verify_project
from torchkiln.publishing.names import names_of_project
from torchkiln.publishing.session import Candidate, PublishSession, PublishTarget


class ProjectKind:
    """The images of projects; it is both a `PublishedKind` and a `VerifiedKind`."""

    is_mine = staticmethod(is_project)
    points = staticmethod(verify_project)
    parent_points = staticmethod(verify_below)

    def candidate(self, image: ImageOnDisk, session: PublishSession, target: PublishTarget) -> Candidate:
        """The gate's decision cites the reports of the parent image by digest."""
        project = project_image(image, session.layout, session.images, session.store)
        name, below = project.account.name, project.account.parent
        return Candidate(
            names=names_of_project(
                image, name, below, session.matrix, day=target.day, requested=target.names
            ),
            result=judge_by_reports(session.inputs, project, session.images),
            bill=lambda: bill_of_project(project, session.images, session.store, name=target.repository.name),
        )


KINDS = (ProjectKind(),)
